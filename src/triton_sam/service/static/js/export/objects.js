/** The objects of a document as exports need them. */
import * as documents from "../core/document.js";
import { shownColour } from "../core/document_classes.js";
import { areaOf, isShown } from "../core/found.js";

/** The category of unnamed objects: fifty of them must not become fifty categories. */
const UNNAMED = "object";

/**
 * @param {import("../core/document.js").Document} document
 * @param {Array<{id: string, name: string, colour: string}>} [classes]
 * @returns {Array<{name: string, className: string|null, category: string, label: number, colour: string,
 *   mask: import("../core/mask.js").Mask, clean: number, score: number|null}>} visible objects with a mask, bottom first; those that a filter hides are not. Labels count
 *   hidden objects too, so that hiding one changes no label.
 *   clean: original pixels; smaller holes and islands of the model's mask were cleaned away.
 */
export function objectsOf(document, classes = []) {
  const classOf = new Map(classes.map((one) => [one.id, one]));
  return document.things
    .map((thing, index) => ({ thing, label: index + 1 }))
    .filter(({ thing }) => isShown(document, thing))
    .map(({ thing, label }) => ({
      name: thing.name,
      className: classOf.get(thing.classId)?.name ?? null,
      category: classOf.get(thing.classId)?.name ?? ownCategory(thing),
      label,
      colour: shownColour(thing, classOf.get(thing.classId)),
      mask: documents.maskOf(thing),
      clean: documents.cleaningOf(thing),
      score: documents.scoreOf(thing),
    }))
    .filter(({ mask }) => mask && areaOf(mask) > 0);
}

const ownCategory = (thing) => (thing.name === documents.givenName(thing.id) ? UNNAMED : thing.name);

/**
 * @param {Array<{mask: import("../core/mask.js").Mask}>} objects bottom first, of one image
 * @returns {number} the index of one that lies wholly under others, the bottom one of several; -1 if there is none
 */
export function coveredIndex(objects) {
  if (!objects.length) return -1;
  const { width, height } = objects[0].mask;
  const isSeen = new Uint8Array(width * height);
  let covered = -1;
  for (let index = objects.length - 1; index >= 0; index -= 1) {
    if (!marksUnseen(objects[index].mask, isSeen)) covered = index;
  }
  return covered;
}

/** Marks a mask's pixels, column by column. @returns {boolean} whether one of them was not marked yet */
function marksUnseen({ runs }, isSeen) {
  let hasUnseen = false;
  let end = 0;
  for (let index = 0; index + 1 < runs.length; index += 2) {
    const start = end + runs[index];
    end = start + runs[index + 1];
    hasUnseen ||= isSeen.subarray(start, end).includes(0);
    isSeen.fill(1, start, end);
  }
  return hasUnseen;
}
