/** Boxes as prompts: x0, y0, x1, y1 in original pixels. */

const LEAST_SIDE = 3;

/**
 * @param {{x: number, y: number}} from @param {{x: number, y: number}} to any two opposite corners, original pixels
 * @param {{width: number, height: number}} image
 * @returns {number[]|null} whole numbers within the image; null if the box is too small
 */
export function boxBetween(from, to, { width, height }) {
  const edge = (value, length) => Math.round(Math.min(length, Math.max(0, value)));
  const [x0, x1] = [edge(from.x, width), edge(to.x, width)].sort((a, b) => a - b);
  const [y0, y1] = [edge(from.y, height), edge(to.y, height)].sort((a, b) => a - b);
  return x1 - x0 >= LEAST_SIDE && y1 - y0 >= LEAST_SIDE ? [x0, y0, x1, y1] : null;
}

/** @param {number[]|null} one @param {number[]|null} other */
export const sameBox = (one, other) => Boolean(one && other) && one.every((value, index) => value === other[index]);
