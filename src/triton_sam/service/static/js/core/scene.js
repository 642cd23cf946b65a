/**
 * Which masks the stage shows of a document, also while a stroke is being drawn.
 *
 * @typedef {import("./mask.js").Mask} Mask
 * @typedef {{mask: Mask, erases: boolean}} Stroke  not in the document yet
 */
import * as documents from "./document.js";
import { isShown } from "./found.js";
import { emptyMask } from "./mask.js";
import { subtract, union } from "./mask_ops.js";
import { rgb } from "./palette.js";

const CHOSEN = [255, 255, 255];

/**
 * @param {documents.Document} document
 * @param {Stroke|null} stroke shown on the active object, or as a new one
 * @param {boolean} isPainting with brush or eraser: the active object must be visible, even under others
 * @param {string|null} [classColour] of a new object, if a class is chosen
 * @returns {{mask: Mask, colour: [number, number, number], isOutline?: boolean}[]} the first lies at the bottom
 */
export function shownMasks(document, stroke, isPainting, classColour = null) {
  const masks = document.things
    .filter((thing) => isShown(document, thing) || (stroke && thing.id === document.activeId))
    .map((thing) => ({ mask: maskOf(thing, document, stroke), colour: rgb(thing.colour) }));
  if (stroke && !stroke.erases && !document.activeId) {
    const colour = classColour ?? documents.paint(document, stroke.mask, false).things.at(-1).colour;
    masks.push({ mask: stroke.mask, colour: rgb(colour) });
  }
  const active = documents.activeThing(document);
  if (isPainting && active) masks.push({ mask: maskOf(active, document, stroke), colour: rgb(active.colour), isOutline: true });
  // Among hundreds, and without points of its own, it could not be told which one is chosen.
  else if (active?.found && isShown(document, active)) masks.push({ mask: maskOf(active, document, stroke), colour: CHOSEN, isOutline: true });
  return masks.filter(({ mask }) => mask);
}

/** A stroke is shown on the object while it is drawn, before it becomes an undo step. */
function maskOf(thing, document, stroke) {
  const mask = documents.maskOf(thing);
  if (!stroke || thing.id !== document.activeId) return mask;
  const base = mask ?? emptyMask(stroke.mask.width, stroke.mask.height);
  return stroke.erases ? subtract(base, stroke.mask) : union(base, stroke.mask);
}

/**
 * What a click would change on the object that is shown.
 * @param {Mask} after
 * @param {Mask|null} before null: the object is not shown yet
 * @returns {{added: Mask, removed: Mask|null}}
 */
export const difference = (after, before) =>
  before ? { added: subtract(after, before), removed: subtract(before, after) } : { added: after, removed: null };
