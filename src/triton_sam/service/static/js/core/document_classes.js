/**
 * Objects and their classes. Documents know the id of a class only; an object's colour is written into it, so that
 * whoever draws needs no classes.
 *
 * @typedef {import("./document.js").Document} Document
 * @typedef {import("./document.js").Thing} Thing
 * @typedef {import("./classes.js").Class} Class
 */

/** The colour of an object: that of its class, unless the user chose another. @param {Thing} thing @param {Class} [one] */
export const shownColour = (thing, one) => (one && !thing.hasOwnColour ? one.colour : thing.colour);

/** @param {Document} document @param {string} id of an object @param {Class|null} one null: no class, and its colour stays */
export function classify(document, id, one) {
  const classId = one?.id ?? null;
  const things = document.things.map((thing) => {
    if (thing.id !== id || (thing.classId ?? null) === classId) return thing;
    return { ...thing, classId, colour: one?.colour ?? thing.colour, hasOwnColour: false };
  });
  return things.some((thing, index) => thing !== document.things[index]) ? { ...document, things } : document;
}

/**
 * Gives the class of the next objects to those that a change has made.
 * @param {Document} before @param {Document} after @param {Class|null} one @returns {Document}
 */
export function withClassOfNew(before, after, one) {
  if (after.made === before.made) return after;
  const known = new Set(before.things.map(({ id }) => id));
  const isNew = (thing) => thing.classId === undefined && !known.has(thing.id);
  if (!after.things.some(isNew)) return after;
  const classed = (thing) => ({ ...thing, classId: one?.id ?? null, colour: one?.colour ?? thing.colour });
  return { ...after, things: after.things.map((thing) => (isNew(thing) ? classed(thing) : thing)) };
}

/**
 * The change that gives objects the present colours of their classes.
 * @param {Class[]} classes
 * @returns {(document: Document) => Document} for many documents: objects that they share stay shared
 */
export function recolouring(classes) {
  const byId = new Map(classes.map((one) => [one.id, one]));
  const recoloured = new Map();
  return (document) => {
    const things = document.things.map((thing) => {
      const colour = shownColour(thing, byId.get(thing.classId));
      if (colour === thing.colour) return thing;
      if (!recoloured.has(thing)) recoloured.set(thing, { ...thing, colour });
      return recoloured.get(thing);
    });
    return things.some((thing, index) => thing !== document.things[index]) ? { ...document, things } : document;
  };
}
