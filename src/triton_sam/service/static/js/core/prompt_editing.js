/**
 * Changes of an object's prompt after it was made: its points and its box can be moved and removed.
 *
 * @typedef {import("./document.js").Document} Document
 */
import { sameBox } from "./box.js";
import { describe, remove } from "./document.js";

const thingOf = (document, id) => document.things.find((thing) => thing.id === id);

/** @param {Document} document @param {string} id @param {number} index of the point @param {{x: number, y: number}} pixel */
export function movePoint(document, id, index, { x, y }) {
  const point = thingOf(document, id)?.points[index];
  if (!point || (point.x === x && point.y === y)) return document;
  return describe(document, id, { points: thingOf(document, id).points.with(index, { ...point, x, y }) });
}

/**
 * Points that take away mean nothing to the model alone: they go with the last point that adds. On an imported mask from
 * which is taken it is the other way round. An object of which nothing is left goes too.
 */
export function removePoint(document, id, index) {
  const thing = thingOf(document, id);
  if (!thing?.points[index]) return document;
  const rest = thing.points.toSpliced(index, 1);
  const isPrompt = thing.box !== null || rest.some(({ label }) => label === (thing.takes ? 0 : 1));
  if (isPrompt) return describe(document, id, { points: rest });
  return thing.added || thing.base ? describe(document, id, { points: [], answer: null }) : remove(document, id);
}

/** @param {number[]} box x0, y0, x1, y1 in original pixels */
export function moveBox(document, id, box) {
  const thing = thingOf(document, id);
  return !thing || sameBox(thing.box, box) ? document : describe(document, id, { box });
}
