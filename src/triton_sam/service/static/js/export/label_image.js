/**
 * Masks as grey PNGs. A label image tells what its values mean in its text chunk "labels", which Pillow reads as
 * `image.text["labels"]`: JSON, value -> {name, class} for objects, value -> {class} for classes.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {import("./coco.js").Picture} Picture
 * @typedef {import("../core/classes.js").Class} Class
 */

import { LABELS } from "../core/label_keyword.js";
import { categoriesOf, categoryOf } from "./categories.js";
import { greyPng } from "./png.js";

const MOST_LABELS = 0xffff;

/**
 * @param {Picture} picture
 * @param {Array<{mask: Mask, label?: number, name?: string, className?: string | null}>} objects From the bottom up:
 *   where two overlap, the later one is seen. Without labels of their own they are 1, 2, ...
 * @returns {Promise<Blob>} A PNG of the picture's size: 0 is background; 8 bit for labels up to 255, else 16 bit.
 */
export function labelImage(picture, objects) {
  const labels = objects.map(({ label }, index) => label ?? index + 1);
  const meaning = objects.map(({ name, className }, index) => [labels[index], { name, class: className ?? null }]);
  return painted(picture, objects, labels, Object.fromEntries(meaning));
}

/**
 * @param {Picture} picture
 * @param {Array<{mask: Mask, name: string, category?: string}>} objects From the bottom up.
 * @param {Class[]} classes
 * @returns {Promise<Blob>} As {@link labelImage}, but each value is a category: the same numbers as in a COCO document.
 */
export function classImage(picture, objects, classes) {
  const categories = categoriesOf(classes, objects);
  const ids = new Map(categories.map(({ id, name }) => [name, id]));
  const meaning = Object.fromEntries(categories.map(({ id, name }) => [id, { class: name }]));
  return painted(picture, objects, objects.map((object) => ids.get(categoryOf(object))), meaning);
}

async function painted({ width, height }, objects, labels, meaning) {
  const highest = Math.max(0, ...labels);
  if (highest > MOST_LABELS) throw new Error(`A label image holds ${MOST_LABELS} objects at most.`);
  if (objects.some(({ mask }) => mask.width !== width || mask.height !== height)) {
    throw new Error(`A label image of ${width} x ${height} pixels needs masks of that size.`);
  }
  const bitDepth = highest > 0xff ? 16 : 8;
  const values = bitDepth === 16 ? new Uint16Array(width * height) : new Uint8Array(width * height);
  objects.forEach(({ mask }, index) => paint(values, mask, labels[index]));
  return columnsToPng(width, height, bitDepth, values, { [LABELS]: JSON.stringify(meaning) });
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

function columnsToPng(width, height, bitDepth, values, texts) {
  const fillRow = (y, row) => {
    for (let x = 0, at = y; x < width; x += 1, at += height) row[x] = values[at];
  };
  return greyPng(width, height, bitDepth, fillRow, texts);
}
