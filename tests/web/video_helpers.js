/** A film of a few frames, masks for it, and a server that answers as it is told. */
import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { Film } from "../../src/triton_sam/service/static/js/video/film.js";
import { bitmapOf, maskOf } from "./helpers.js";

const SIZE = { width: 6, height: 4 };

export const info = (frames = 10, more = {}) =>
  ({ id: "v1", model: "m", name: "clip.mp4", ...SIZE, frames, fps: 25, axis: "t", contrast: null, notes: [], ...more });

export const film = (frames, more) => new Film(info(frames, more), null);

/** @returns {object} a mask whose first pixels are the object's, in the API's form */
export const rle = (pixels = 5) => toCocoRle(maskOf(bitmapOf(SIZE.width, SIZE.height, (x, y) => y * SIZE.width + x < pixels)));

/** @param {number} frame @param {Record<number, number>} pixels of each object @returns {object} the API's answer */
export const answer = (frame, pixels) => ({
  frame_index: frame,
  results: Object.entries(pixels).map(([object, count]) => ({ object_id: Number(object), mask: rle(count), appearance: 1 })),
});

export const point = (x = 1, y = 2, label = 1) => ({ x, y, label });

/** Until what was promised before has happened. */
export const turns = async (count = 10) => {
  for (let turn = 0; turn < count; turn += 1) await Promise.resolve();
};
