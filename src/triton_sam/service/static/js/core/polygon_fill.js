/**
 * Polygons -> masks, by the two rules that are in use: COCO's own, and that of geometry (a pixel belongs to a polygon
 * if its centre does).
 *
 * @typedef {import("./mask.js").Mask} Mask
 * @typedef {import("./polygon.js").Polygon} Polygon
 */
import { RunWriter } from "./mask.js";

/** COCO's rule works on a grid that is finer by this factor. */
const FINE = 5;

/**
 * One polygon exactly as pycocotools rasterises it (rleFrPoly): the border is walked in steps of a fifth of a pixel,
 * and each crossing of a column's middle turns over all pixels from there on.
 *
 * @param {ArrayLike<number>} xy x0, y0, x1, y1, ... in original pixels; closed by itself
 * @param {number} width Of the image.
 * @param {number} height Of the image.
 * @returns {Mask}
 */
export function cocoPolygonMask(xy, width, height) {
  const count = Math.floor(xy.length / 2);
  const fine = (index) => Math.trunc(FINE * xy[index] + 0.5);
  const turns = [];
  let before = null;
  for (let index = 0; index < count; index += 1) {
    const next = (index + 1) % count;
    before = walk(fine(2 * index), fine(2 * index + 1), fine(2 * next), fine(2 * next + 1), before, (from, to) => {
      const turn = turnBetween(from, to, width, height);
      if (turn !== null) turns.push(turn);
    });
  }
  return maskOfTurns(turns, width, height);
}

/** The points of a fine line, from its start to its end, as C's integers have them. */
function walk(x0, y0, x1, y1, before, onStep) {
  const [dx, dy] = [Math.abs(x1 - x0), Math.abs(y1 - y0)];
  const isFlat = dx >= dy;
  const isFlipped = isFlat ? x0 > x1 : y0 > y1;
  const [xs, ys, xe, ye] = isFlipped ? [x1, y1, x0, y0] : [x0, y0, x1, y1];
  const length = isFlat ? dx : dy;
  const slope = length === 0 ? 0 : isFlat ? (ye - ys) / dx : (xe - xs) / dy;
  let last = before;
  for (let step = 0; step <= length; step += 1) {
    const t = isFlipped ? length - step : step;
    const x = isFlat ? t + xs : Math.trunc(xs + slope * t + 0.5);
    const y = isFlat ? Math.trunc(ys + slope * t + 0.5) : t + ys;
    if (last && x !== last.x) onStep(last, { x, y });
    last = { x, y };
  }
  return last;
}

/** @returns {number|null} the pixel, column by column, from which on all are turned over; null between columns */
function turnBetween(from, to, width, height) {
  const x = ((to.x < from.x ? to.x : to.x - 1) + 0.5) / FINE - 0.5;
  if (Math.floor(x) !== x || x < 0 || x > width - 1) return null;
  const y = (Math.min(from.y, to.y) + 0.5) / FINE - 0.5;
  return x * height + Math.ceil(Math.min(height, Math.max(0, y)));
}

function maskOfTurns(turns, width, height) {
  const ordered = Float64Array.from(turns).sort();
  const writer = new RunWriter(ordered.length + 2);
  let end = 0;
  ordered.forEach((turn, index) => {
    writer.add((index & 1) === 1, turn - end);
    end = turn;
  });
  writer.add((ordered.length & 1) === 1, width * height - end);
  return writer.toMask(width, height);
}

/**
 * A polygon with holes: the pixels whose centre lies inside, by the even-odd rule. A centre exactly on the border
 * belongs to the polygon at its right or below, so that polygons that share a border share no pixel.
 *
 * @param {Polygon} rings In original pixels, xy, pixel corners; open or closed.
 * @param {number} width Of the image.
 * @param {number} height Of the image.
 * @returns {Mask}
 */
export function polygonMask(rings, width, height) {
  const columns = new Map();
  for (const ring of rings) {
    ring.forEach(([x1, y1], index) => {
      const [x0, y0] = ring[(index || ring.length) - 1];
      addCrossings(columns, x0, y0, x1, y1, width);
    });
  }
  const turns = [];
  for (const [column, crossings] of columns) {
    for (const y of crossings) {
      const row = Math.ceil(Math.min(height + 0.5, Math.max(0, y)) - 0.5);
      turns.push(column * height + Math.min(height, Math.max(0, row)));
    }
  }
  return maskOfTurns(turns, width, height);
}

/** Where an edge crosses the middles of columns; its left end belongs to it, its right end does not. */
function addCrossings(columns, x0, y0, x1, y1, width) {
  const [left, right] = x0 < x1 ? [x0, x1] : [x1, x0];
  const first = Math.max(0, Math.ceil(left - 0.5));
  const pastLast = Math.min(width, Math.ceil(right - 0.5));
  for (let column = first; column < pastLast; column += 1) {
    const y = y0 === y1 ? y0 : y0 + ((column + 0.5 - x0) / (x1 - x0)) * (y1 - y0);
    if (!columns.has(column)) columns.set(column, []);
    columns.get(column).push(y);
  }
}
