/**
 * The halved copies of an image, for Pyramid. Large images are halved in a worker: on the main thread the page would stand
 * still for half a second.
 */

const SMALLEST_SIDE = 512;
/** Smaller images are halved faster than a worker is asked. */
const LARGE = 4_000_000;

/** @param {{width: number, height: number}} size @returns {{width: number, height: number}[]} of the halved copies */
export function halvedSizes({ width, height }) {
  const sizes = [];
  while (Math.max(width, height) > 2 * SMALLEST_SIDE) {
    [width, height] = [width, height].map((side) => Math.max(1, Math.round(side / 2)));
    sizes.push({ width, height });
  }
  return sizes;
}

/**
 * @param {ImageBitmap} bitmap
 * @param {(width: number, height: number) => HTMLCanvasElement|OffscreenCanvas} newCanvas
 * @returns {(HTMLCanvasElement|OffscreenCanvas)[]} the largest first, each made from the one before
 */
export function halved(bitmap, newCanvas) {
  let before = bitmap;
  return halvedSizes(bitmap).map(({ width, height }) => {
    const canvas = newCanvas(width, height);
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(before, 0, 0, width, height);
    before = canvas;
    return canvas;
  });
}

/** In a worker. @param {ImageBitmap} bitmap @returns {ImageBitmap[]} */
export const halvedInWorker = (bitmap) =>
  halved(bitmap, (width, height) => new OffscreenCanvas(width, height)).map((canvas) => canvas.transferToImageBitmap());

/** @type {WeakMap<ImageBitmap, ImageBitmap[]>} */
const ready = new WeakMap();

/** @param {ImageBitmap} bitmap @param {ImageBitmap[]} levels its halved copies @returns {ImageBitmap} the same */
export function withLevels(bitmap, levels) {
  ready.set(bitmap, levels);
  return bitmap;
}

/** @param {ImageBitmap} bitmap @returns {(ImageBitmap|HTMLCanvasElement)[]} its halved copies, made now if they are not ready */
export function levelsOf(bitmap) {
  return ready.get(bitmap) ?? halved(bitmap, (width, height) => Object.assign(document.createElement("canvas"), { width, height }));
}

let worker = null;
let count = 0;
const waiting = new Map();

function start() {
  const made = new Worker(new URL("./levels_worker.js", import.meta.url), { type: "module" });
  made.onmessage = ({ data: { id, bitmap, levels } }) => {
    waiting.get(id).resolve(withLevels(bitmap, levels));
    waiting.delete(id);
  };
  made.onerror = () => {
    worker = null;
    for (const { reject } of waiting.values()) reject(new Error("the worker for large images failed"));
    waiting.clear();
  };
  return made;
}

/** @param {ImageBitmap} bitmap used up by this @returns {Promise<ImageBitmap>} the same pixels, with its halved copies ready */
export function prepared(bitmap) {
  if (bitmap.width * bitmap.height < LARGE) return Promise.resolve(bitmap);
  worker ??= start();
  const id = ++count;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, bitmap }, [bitmap]);
  });
}
