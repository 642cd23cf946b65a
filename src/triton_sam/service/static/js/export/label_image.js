/**
 * Masks as grey PNGs.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {import("./coco.js").Picture} Picture
 */

import { greyPng } from "./png.js";

const MOST_LABELS = 0xffff;

/**
 * @param {Picture} picture
 * @param {Array<{mask: Mask, label?: number}>} objects From the bottom up: where two overlap, the later one is
 *   seen. Without labels of their own they are 1, 2, ...
 * @returns {Promise<Blob>} A PNG of the picture's size: 0 is background; 8 bit for labels up to 255, else 16 bit.
 */
export async function labelImage(picture, objects) {
  const { width, height } = picture;
  const labels = objects.map(({ label }, index) => label ?? index + 1);
  const highest = Math.max(0, ...labels);
  if (highest > MOST_LABELS) throw new Error(`A label image holds ${MOST_LABELS} objects at most.`);
  if (objects.some(({ mask }) => mask.width !== width || mask.height !== height)) {
    throw new Error(`A label image of ${width} x ${height} pixels needs masks of that size.`);
  }
  const bitDepth = highest > 0xff ? 16 : 8;
  const values = bitDepth === 16 ? new Uint16Array(width * height) : new Uint8Array(width * height);
  objects.forEach(({ mask }, index) => paint(values, mask, labels[index]));
  return columnsToPng(width, height, bitDepth, values);
}

/**
 * @param {Mask} mask
 * @returns {Promise<Blob>} A PNG of the mask's size, 8 bit: 0 is background, 255 the object.
 */
export async function maskImage(mask) {
  const values = new Uint8Array(mask.width * mask.height);
  paint(values, mask, 255);
  return columnsToPng(mask.width, mask.height, 8, values);
}

/** Values are stored column by column, like a mask's runs, so that each run is one fill. */
function paint(values, { runs }, value) {
  let end = 0;
  for (let index = 0; index + 1 < runs.length; index += 2) {
    const start = end + runs[index];
    end = start + runs[index + 1];
    values.fill(value, start, end);
  }
}

function columnsToPng(width, height, bitDepth, values) {
  return greyPng(width, height, bitDepth, (y, row) => {
    for (let x = 0, at = y; x < width; x += 1, at += height) row[x] = values[at];
  });
}
