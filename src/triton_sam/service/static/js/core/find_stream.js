/**
 * What a find has found so far, from the messages of /v1/everything. Masks that come again in the final document are the
 * same values as before, so that nothing is drawn anew and colours stay.
 *
 * @typedef {import("./mask.js").Mask} Mask
 * @typedef {{mask: Mask, score: number, colour: string}} Found
 * @typedef {{id: number, predicted_iou: number, segmentation: import("./mask.js").CocoRle}} FoundRecord
 * @typedef {object} Finding  immutable
 * @property {{width: number, height: number}} size  of the image, original pixels
 * @property {string[]} used  colours of the other objects
 * @property {number} done  points that were tried
 * @property {number} of  all points; 0 until it is known
 * @property {Map<number, Found & {text: string}>} found  by the server's id
 */
import { fromCocoRle } from "./mask.js";
import { nextColour } from "./palette.js";

/** @returns {Finding} */
export const newFinding = (size, used = []) => ({ size, used, done: 0, of: 0, found: new Map() });

/**
 * @param {Finding} finding
 * @param {{progress: {done: number, of: number}, masks?: FoundRecord[], gone?: number[]}} message
 * @returns {Finding}
 * @throws {Error} if it has something that is not a mask of this image
 */
export function withProgress(finding, { progress, masks = [], gone = [] }) {
  const found = new Map(finding.found);
  for (const id of gone) found.delete(id);
  if (masks.length) read(finding, masks, found);
  return { ...finding, done: progress.done, of: progress.of, found };
}

/** @param {Finding} finding @param {{of?: number, masks: FoundRecord[]}} document the last message; it has all masks @returns {Finding} */
export function withResult(finding, { of = finding.of, masks }) {
  const found = new Map();
  read(finding, masks, found);
  return { ...finding, done: of, of, found };
}

/** @param {Finding} finding @returns {Found[]} in the server's order */
export const foundSoFar = ({ found }) => [...found.values()];

function read({ size, used, found: before }, records, found) {
  const known = new Map([...before.values()].map((one) => [one.text, one]));
  const kept = records.filter(({ segmentation }) => known.has(segmentation?.counts)).map(({ segmentation }) => known.get(segmentation.counts));
  const colours = [...used, ...[...found.values(), ...kept].map(({ colour }) => colour)];
  for (const { id, predicted_iou: score, segmentation } of records) {
    const same = known.get(segmentation?.counts);
    const colour = same?.colour ?? nextColour(colours);
    if (!same) colours.push(colour);
    found.set(id, { mask: same?.mask ?? maskOf(segmentation, size), score: Number(score) || 0, colour, text: segmentation.counts });
  }
}

function maskOf(segmentation, { width, height }) {
  const mask = fromCocoRle(segmentation);
  if (mask.width !== width || mask.height !== height) {
    throw new Error(`A mask has ${mask.width} x ${mask.height} pixels, and the image ${width} x ${height}.`);
  }
  return mask;
}
