/**
 * The view: which part of the image is on the screen. Units are device pixels of the canvas, except for image coordinates:
 * screen = image * scale + offset. Immutable.
 * @typedef {{scale: number, x: number, y: number}} View
 * @typedef {{width: number, height: number}} Size
 */

const LARGEST_SCALE = 40;
/** How much of the image stays visible when it is dragged. */
const LEAST_LEFT = 48;
const MARGIN = 0.96;

/** @param {Size} image @param {Size} canvas @returns {View} the whole image, in the middle, never enlarged above 4x */
export function fitted(image, canvas) {
  const scale = Math.min((canvas.width * MARGIN) / image.width, (canvas.height * MARGIN) / image.height, 4);
  return centred(image, canvas, scale);
}

/** @returns {View} the image's middle in the canvas' middle */
export function centred(image, canvas, scale) {
  return {
    scale,
    x: (canvas.width - image.width * scale) / 2,
    y: (canvas.height - image.height * scale) / 2,
  };
}

/** @returns {View} with whole offsets, for drawing: at 1:1 an image pixel is exactly one pixel of the screen */
export const aligned = (view) => ({ scale: view.scale, x: Math.round(view.x), y: Math.round(view.y) });

/** @returns {View} zoomed by a factor, with the image point under (x, y) staying there */
export function zoomed(view, factor, x, y, image, canvas) {
  const least = Math.min(fitted(image, canvas).scale, 1) / 2;
  const wanted = Math.min(LARGEST_SCALE, Math.max(least, view.scale * factor));
  const scale = Math.abs(wanted - 1) < 1e-6 ? 1 : wanted; // 1:1 must be exact, not 0.99999
  const ratio = scale / view.scale;
  return kept({ scale, x: x - (x - view.x) * ratio, y: y - (y - view.y) * ratio }, image, canvas);
}

/** @returns {View} moved by device pixels */
export const moved = (view, dx, dy, image, canvas) => kept({ ...view, x: view.x + dx, y: view.y + dy }, image, canvas);

function kept(view, image, canvas) {
  const within = (offset, length, room) => Math.min(room - LEAST_LEFT, Math.max(LEAST_LEFT - length, offset));
  return {
    scale: view.scale,
    x: within(view.x, image.width * view.scale, canvas.width),
    y: within(view.y, image.height * view.scale, canvas.height),
  };
}

/** @returns {{x: number, y: number}} device pixels -> original pixels, continuous */
export const toImage = (view, x, y) => ({ x: (x - view.x) / view.scale, y: (y - view.y) / view.scale });

/** @returns {{x: number, y: number}} original pixels, continuous -> device pixels */
export const toScreen = (view, x, y) => ({ x: x * view.scale + view.x, y: y * view.scale + view.y });

/** @returns {{x: number, y: number}|null} the whole original pixel under a screen point; null outside the image */
export function pixelAt(view, x, y, image) {
  const at = toImage(view, x, y);
  const pixel = { x: Math.floor(at.x), y: Math.floor(at.y) };
  return pixel.x >= 0 && pixel.y >= 0 && pixel.x < image.width && pixel.y < image.height ? pixel : null;
}

/** @returns {{x: number, y: number}} the nearest whole original pixel */
export function nearestPixel(view, x, y, image) {
  const at = toImage(view, x, y);
  const within = (value, size) => Math.min(size - 1, Math.max(0, Math.floor(value)));
  return { x: within(at.x, image.width), y: within(at.y, image.height) };
}
