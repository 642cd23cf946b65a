/**
 * Packs a history for storage, with numbers in place of masks: each mask is stored once, or every click would write all of
 * them again. Objects that documents share stay shared.
 *
 * @typedef {import("./mask.js").Mask} Mask
 */

/**
 * @param {import("./history.js").History} history of documents
 * @param {(mask: Mask) => number} idOf returns the same number for the same mask
 * @returns {object} for {@link unpacked}
 */
export const packed = (history, idOf) => mapped(history, idOf);

/**
 * @param {object} history of {@link packed}
 * @param {(id: number) => Mask} maskOf
 * @returns {import("./history.js").History}
 */
export const unpacked = (history, maskOf) => mapped(history, maskOf);

function mapped({ past, present, future }, change) {
  const things = new Map();
  const thingOf = (thing) => {
    if (!things.has(thing)) things.set(thing, changedThing(thing, change));
    return things.get(thing);
  };
  const documentOf = (document) => ({ ...document, things: document.things.map(thingOf) });
  return { past: past.map(documentOf), present: documentOf(present), future: future.map(documentOf) };
}

function changedThing(thing, change) {
  const changed = (value) => (value == null ? null : change(value));
  const answer = thing.answer && {
    key: thing.answer.key,
    candidates: thing.answer.candidates.map(({ mask, score }) => ({ mask: change(mask), score })),
  };
  const painted = { added: changed(thing.added), removed: changed(thing.removed) };
  return { ...thing, answer, ...painted, ...(thing.base != null && { base: change(thing.base) }) };
}
