/**
 * Objects that were found, of everything or by words, in a document. Their mask is an imported one as far as clicks and brush are
 * concerned, so it stays exactly as the server sent it. What the user has neither changed nor accepted can be hidden by a filter,
 * and is replaced by the next find.
 *
 * @typedef {import("./document.js").Document} Document
 * @typedef {import("./document.js").Thing} Thing
 * @typedef {import("./find_stream.js").Found & {one?: import("./classes.js").Class|null, words?: string}} Found  one: its class, if it has one
 *   of its own; words: what was looked for, if it was not everything; empty: what examples show
 * @typedef {{score: number, size: number}} Filter  the least score, and the least size in original pixels; 0: all
 * @typedef {"drawn"|"size"|"score"} Order  of the list: the topmost, the largest or the best first
 */
import { NOTHING_YET, givenName, maskOf, move, scoreOf } from "./document.js";
import { area } from "./mask.js";

/** @type {Filter} */
export const NO_FILTER = { score: 0, size: 0 };

const areas = new WeakMap();

/** @param {import("./mask.js").Mask} mask @returns {number} its pixels, counted once */
export function areaOf(mask) {
  if (!areas.has(mask)) areas.set(mask, area(mask));
  return areas.get(mask);
}

/** Whether a find has made it and the user has not accepted it, nor changed anything but its visibility. @param {Thing} thing */
export const isUntouched = (thing) =>
  thing.found != null && !thing.found.isAccepted &&
  !thing.points.length && !thing.answer && !thing.added && !thing.removed && !thing.hasOwnColour &&
  thing.name === givenName(thing.id) &&
  (thing.classId ?? null) === thing.found.classId;

/** @param {Document} document */
export const hasFound = ({ things }) => things.some(isUntouched);

/** Whether the filter hides it. @param {Document} document @param {Thing} thing */
export function isFiltered({ filter }, thing) {
  if (!filter || (!filter.score && !filter.size) || !isUntouched(thing)) return false;
  return thing.found.score < filter.score || areaOf(thing.base) < filter.size;
}

/** Whether it is drawn and exported. @param {Document} document @param {Thing} thing */
export const isShown = (document, thing) => thing.visible && !isFiltered(document, thing);

/** @param {Document} document @param {Filter} filter @returns {Document} an object that it hides is not the active one */
export function withFilter(document, filter) {
  const { score, size } = document.filter ?? NO_FILTER;
  if (score === filter.score && size === filter.size) return document;
  const after = { ...document, filter };
  const active = document.things.find(({ id }) => id === document.activeId);
  return active && isFiltered(after, active) ? { ...after, activeId: null } : after;
}

/**
 * Adds what was found below all other objects, the largest at the bottom, so that nothing covers what the user has made.
 * Unchanged objects of an earlier find go.
 * @param {Document} document @param {Found[]} found
 * @param {import("./classes.js").Class|null} classOfNew  unless they have one of their own
 * @param {(thing: Thing) => boolean} [isReplaced] which ones go
 */
export function addFound(document, found, classOfNew, isReplaced = isUntouched) {
  const kept = document.things.filter((thing) => !isReplaced(thing));
  if (!found.length && kept.length === document.things.length) return document;
  const added = [...found].sort((a, b) => areaOf(b.mask) - areaOf(a.mask)).map(({ mask, score, colour, one = classOfNew, words }, index) => {
    const id = `object-${document.made + index + 1}`;
    const classId = one?.id ?? null;
    const look = { id, name: givenName(id), colour: one?.colour ?? colour };
    const origin = { score, classId, ...(words !== undefined && { words }) };
    return { ...NOTHING_YET, ...look, base: mask, classId, hasOwnColour: false, found: origin };
  });
  const activeId = kept.some(({ id }) => id === document.activeId) ? document.activeId : null;
  return { ...document, things: [...added, ...kept], activeId, made: document.made + added.length };
}

/** @param {Document} document @param {Order} [order] @returns {Thing[]} the objects of the list, without those that the filter hides */
export function listed(document, order = "drawn") {
  const things = document.things.filter((thing) => !isFiltered(document, thing)).reverse();
  if (order === "drawn") return things;
  const value = order === "size" ? sizeOf : (thing) => scoreOf(thing) ?? -1;
  const values = new Map(things.map((thing) => [thing, value(thing)]));
  return things.sort((a, b) => values.get(b) - values.get(a));
}

const sizeOf = (thing) => {
  const mask = maskOf(thing);
  return mask ? areaOf(mask) : -1;
};

/** As {@link move}, past objects that the filter hides. @param {number} by 1: one nearer to the top */
export function moveListed(document, id, by) {
  const { things } = document;
  const from = things.findIndex((thing) => thing.id === id);
  let to = from + by;
  while (things[to] && isFiltered(document, things[to])) to += by;
  return move(document, id, to - from);
}

/** @param {Document} document @returns {{shown: number, total: number}} found objects that the user has not changed */
export function countFound(document) {
  const found = document.things.filter(isUntouched);
  return { total: found.length, shown: found.filter((thing) => !isFiltered(document, thing)).length };
}

/**
 * Found objects become the user's own: no filter hides them, and no other find replaces them.
 * @param {Document} document @param {string|null} [id] null: all that the filter does not hide
 */
export function accept(document, id = null) {
  const isMeant = (thing) => isUntouched(thing) && (id === null ? !isFiltered(document, thing) : thing.id === id);
  if (!document.things.some(isMeant)) return document;
  const accepted = (thing) => ({ ...thing, found: { ...thing.found, isAccepted: true } });
  return { ...document, things: document.things.map((thing) => (isMeant(thing) ? accepted(thing) : thing)) };
}

/** Removes what was found and neither changed nor accepted, hidden or not. @param {Document} document */
export function dropFound(document) {
  if (!hasFound(document)) return document;
  const things = document.things.filter((thing) => !isUntouched(thing));
  const isLeft = things.some(({ id }) => id === document.activeId);
  return { ...document, things, activeId: isLeft ? document.activeId : null };
}
