/** Brute force on bitmaps, against which the run lengths are held, and what fakes of the server are made of. */


/**
 * A small seeded generator (mulberry32), so that a failing example can be had again.
 *
 * @param {number} seed
 * @returns {() => number} From 0 inclusive to 1 exclusive.
 */
export function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** @typedef {{width: number, height: number, data: Uint8Array}} Bitmap Row by row, 0 or 1. */

/**
 * @param {() => number} random
 * @param {number} [longestSide]
 * @returns {Bitmap} Noise, blocks, all or nothing, of any shape from 1 x 1 on.
 */
export function randomBitmap(random, longestSide = 14) {
  const width = 1 + Math.floor(random() * longestSide);
  const height = 1 + Math.floor(random() * longestSide);
  return randomBitmapOf(random, width, height);
}

/**
 * @param {() => number} random
 * @param {number} width
 * @param {number} height
 * @returns {Bitmap}
 */
export function randomBitmapOf(random, width, height) {
  const density = [0, 0.1, 0.5, 0.5, 0.7, 0.9, 1][Math.floor(random() * 7)];
  const block = 1 + Math.floor(random() * 3);
  const blocksAcross = Math.ceil(width / block);
  const blocks = Array.from({ length: blocksAcross * Math.ceil(height / block) }, () => random() < density);
  const isSet = (x, y) => blocks[Math.floor(y / block) * blocksAcross + Math.floor(x / block)];
  return bitmapOf(width, height, isSet);
}

/**
 * @param {number} width
 * @param {number} height
 * @param {(x: number, y: number) => boolean} isSet
 * @returns {Bitmap}
 */
export function bitmapOf(width, height, isSet) {
  const data = new Uint8Array(width * height);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) data[y * width + x] = isSet(x, y) ? 1 : 0;
  }
  return { width, height, data };
}

/**
 * @param {...string} rows "#" is the object.
 * @returns {Bitmap}
 */
export function drawing(...rows) {
  return bitmapOf(rows[0].length, rows.length, (x, y) => rows[y][x] === "#");
}

/**
 * @param {Bitmap} bitmap
 * @returns {Array<number>} Run lengths, column by column.
 */
export function runsOf({ width, height, data }) {
  const runs = [0];
  for (let x = 0; x < width; x += 1) {
    for (let y = 0; y < height; y += 1) {
      if (data[y * width + x] !== ((runs.length - 1) & 1)) runs.push(0);
      runs[runs.length - 1] += 1;
    }
  }
  return runs;
}

/**
 * @param {Bitmap} bitmap
 * @returns {import("../../src/triton_sam/service/static/js/core/mask.js").Mask}
 */
export function maskOf(bitmap) {
  return { width: bitmap.width, height: bitmap.height, runs: Uint32Array.from(runsOf(bitmap)) };
}

/**
 * @param {import("../../src/triton_sam/service/static/js/core/mask.js").Mask} mask
 * @returns {Bitmap}
 */
export function bitmapOfMask({ width, height, runs }) {
  const pixels = [...runs].flatMap((run, index) => new Array(run).fill(index & 1));
  return bitmapOf(width, height, (x, y) => pixels[x * height + y] === 1);
}

/**
 * COCO's text in whole numbers of any size, as the reference of the quick one.
 *
 * @param {Array<number>} runs
 * @returns {string}
 */
export function packRuns(runs) {
  let text = "";
  runs.forEach((run, index) => {
    let rest = BigInt(run) - (index > 2 ? BigInt(runs[index - 2]) : 0n);
    for (;;) {
      const group = Number(BigInt.asUintN(5, rest));
      rest >>= 5n;
      const isLast = rest === (group & 16 ? -1n : 0n);
      text += String.fromCharCode(48 + group + (isLast ? 0 : 32));
      if (isLast) return;
    }
  });
  return text;
}

/**
 * @template T
 * @param {() => number} random
 * @param {Array<T>} choices
 * @returns {T}
 */
export function oneOf(random, choices) {
  return choices[Math.floor(random() * choices.length)];
}

/** @returns {{promise: Promise<any>, resolve: (value?: any) => void, reject: (error: any) => void}} */
export function deferred() {
  const result = {};
  result.promise = new Promise((resolve, reject) => Object.assign(result, { resolve, reject }));
  return result;
}

/** Until all that follows from settled promises has happened; no time need pass for that. */
export const settled = () => new Promise((resolve) => setImmediate(resolve));

/**
 * An encoding on a server that a test answers: each call waits until the test resolves or rejects it.
 *
 * @param {Array<object>} calls Filled with {file, model, onSent, signal, resolve, reject}.
 */
export function fakeEncode(calls) {
  return (file, model, onSent, signal) => {
    const answer = deferred();
    signal.addEventListener("abort", () => answer.reject(signal.reason), { once: true });
    calls.push({ file, model, onSent, signal, resolve: answer.resolve, reject: answer.reject });
    return answer.promise;
  };
}
