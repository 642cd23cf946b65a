/**
 * From samples to pixels and files. Slow for large images: run by worker.js.
 *
 * @typedef {import("./planes.js").Planes} Planes
 * @typedef {import("./view.js").View} View
 */
import { greyPng, rgbPng } from "../export/png.js";
import { paint } from "./channels.js";
import { compressed, levelsOf, planesOf } from "./planes.js";
import { newView } from "./view.js";
import { histogramOf, tableOf } from "./window.js";

/** @param {Planes} planes @param {string} dtype @returns {Uint32Array[]} of each channel */
export const histogramsOf = ({ data }, dtype) => data.map((plane) => histogramOf(plane, levelsOf(dtype)));

const tablesOf = ({ windows, dtype }) => windows.map((window) => tableOf(window, levelsOf(dtype)));

/**
 * @param {Planes} planes @param {View} view
 * @param {number} [stride] only each stride-th pixel across and down, for a quick look
 * @returns {{width: number, height: number, data: Uint8ClampedArray}} RGBA
 */
export function pixelsOf(planes, view, stride = 1) {
  const [width, height] = [Math.ceil(planes.width / stride), Math.ceil(planes.height / stride)];
  const data = new Uint8ClampedArray(4 * width * height);
  paint(planes, view.look, tablesOf(view), data, { from: 0, to: planes.height, stride });
  return { width, height, data };
}

/** @param {Planes} planes @param {View} view @returns {Promise<Blob>} PNG of 8 bits with the same pixels */
export function pngOf(planes, view) {
  const { width, height } = planes;
  const tables = tablesOf(view);
  if ("grey" in view.look) {
    const [plane, table] = [planes.data[view.look.grey], tables[view.look.grey]];
    return greyPng(width, height, 8, (y, row) => {
      for (let x = 0; x < width; x += 1) row[x] = table[plane[y * width + x]];
    });
  }
  const pixels = new Uint8ClampedArray(4 * width);
  return rgbPng(width, height, (y, row) => {
    paint(planes, view.look, tables, pixels, { from: y, to: y + 1, stride: 1 });
    for (let from = 0, to = 0; to < row.length; from += 4, to += 3) {
      row[to] = pixels[from];
      row[to + 1] = pixels[from + 1];
      row[to + 2] = pixels[from + 2];
    }
  });
}

/**
 * One page as an item of the list.
 * @param {Blob} samples of the page
 * @param {Omit<View, "source"|"look"|"windows"|"isLinked">} about
 * @param {boolean} isStretched
 * @returns {Promise<{view: View, file: Blob}>}
 */
export async function develop(samples, about, isStretched) {
  const planes = planesOf(await samples.arrayBuffer(), about);
  const view = newView({ ...about, source: await compressed(samples) }, histogramsOf(planes, about.dtype), isStretched);
  return { view, file: await pngOf(planes, view) };
}

/**
 * @param {{width: number, height: number, data: Uint8ClampedArray}} pixels RGBA, opaque
 * @returns {Uint8Array} [3,H,W], or [1,H,W] if it is grey
 */
export function samplesOf({ width, height, data }) {
  const size = width * height;
  const samples = new Uint8Array(3 * size);
  let isGrey = true;
  for (let at = 0; at < size; at += 1) {
    const [red, green, blue] = [data[4 * at], data[4 * at + 1], data[4 * at + 2]];
    samples[at] = red;
    samples[size + at] = green;
    samples[2 * size + at] = blue;
    isGrey &&= red === green && green === blue;
  }
  return isGrey ? samples.subarray(0, size) : samples;
}
