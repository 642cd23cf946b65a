/**
 * Operations on masks: set operations, brush strokes, and the two formats for drawing.
 *
 * @typedef {import("./mask.js").Mask} Mask
 * @typedef {import("./mask.js").Box} Box
 */

import { RunWriter, bounds, emptyMask } from "./mask.js";

const spansOfMasks = new WeakMap();

/**
 * @param {Mask} a
 * @param {Mask} b Of the same size.
 * @returns {Mask} The pixels of either.
 */
export function union(a, b) {
  return combine(a, b, (inA, inB) => inA || inB);
}

/**
 * @param {Mask} a
 * @param {Mask} b Of the same size.
 * @returns {Mask} The pixels of a that are not b's.
 */
export function subtract(a, b) {
  return combine(a, b, (inA, inB) => inA && !inB);
}

function combine(a, b, isKept) {
  if (a.width !== b.width || a.height !== b.height) {
    throw new Error(`Masks of ${a.width} x ${a.height} and ${b.width} x ${b.height} pixels do not combine.`);
  }
  const writer = new RunWriter(a.runs.length + b.runs.length + 1);
  let indexA = 0;
  let indexB = 0;
  let restA = a.runs[0];
  let restB = b.runs[0];
  while (indexA < a.runs.length && indexB < b.runs.length) {
    const step = Math.min(restA, restB);
    writer.add(isKept((indexA & 1) === 1, (indexB & 1) === 1), step);
    restA -= step;
    restB -= step;
    if (restA === 0 && (indexA += 1) < a.runs.length) restA = a.runs[indexA];
    if (restB === 0 && (indexB += 1) < b.runs.length) restB = b.runs[indexB];
  }
  return writer.toMask(a.width, a.height);
}

/**
 * The object's pixels as vertical spans, each within one column; computed once per mask.
 *
 * @param {Mask} mask
 * @returns {{offsets: Uint32Array, spans: Uint32Array, firstColumn: number, pastLastColumn: number}} Original pixels.
 *   Column x has the spans i = offsets[x] .. offsets[x + 1] - 1, downwards, from spans[2 * i] (inclusive) to
 *   spans[2 * i + 1] (exclusive). Other columns than firstColumn .. pastLastColumn - 1 have none.
 */
export function columnSpans(mask) {
  let result = spansOfMasks.get(mask);
  if (!result) {
    result = splitIntoColumns(mask);
    spansOfMasks.set(mask, result);
  }
  return result;
}

function splitIntoColumns({ width, height, runs }) {
  const offsets = new Uint32Array(width + 1);
  // A run over n columns' ends becomes n + 1 spans, and a mask has width - 1 such ends.
  const spans = new Uint32Array(2 * ((runs.length >> 1) + width - 1));
  let count = 0;
  let column = 0;
  let end = 0;
  for (let index = 0; index + 1 < runs.length; index += 2) {
    let start = end + runs[index];
    end = start + runs[index + 1];
    while (start < end) {
      const x = Math.floor(start / height);
      while (column < x) offsets[(column += 1)] = count;
      const columnStart = x * height;
      const stop = Math.min(end, columnStart + height);
      spans[2 * count] = start - columnStart;
      spans[2 * count + 1] = stop - columnStart;
      count += 1;
      start = stop;
    }
  }
  offsets.fill(count, column + 1);
  const isEmpty = count === 0;
  const firstColumn = isEmpty ? 0 : Math.floor(runs[0] / height);
  return { offsets, spans: spans.slice(0, 2 * count), firstColumn, pastLastColumn: isEmpty ? 0 : column + 1 };
}

/**
 * The crop of a mask as an image.
 *
 * @param {Mask} mask
 * @param {Box} [box] Original pixels; it may reach out of the image, where all is background. Without it the
 *   mask's bounds, which are 0 x 0 at (0, 0) for an empty mask.
 * @returns {{x: number, y: number, width: number, height: number, data: Uint8Array}} The box, and its pixels
 *   row by row, 0 or 1.
 */
export function toBitmap(mask, box = bounds(mask) ?? { x: 0, y: 0, width: 0, height: 0 }) {
  const { x, y, width, height } = box;
  const data = new Uint8Array(width * height);
  const { offsets, spans } = columnSpans(mask);
  const firstColumn = Math.max(x, 0);
  const pastLastColumn = Math.min(x + width, mask.width);
  // A span marks only where it starts and stops; one pass in memory's order then fills all of them downwards.
  for (let column = firstColumn; column < pastLastColumn; column += 1) {
    for (let index = offsets[column]; index < offsets[column + 1]; index += 1) {
      const start = Math.max(spans[2 * index] - y, 0);
      const stop = Math.min(spans[2 * index + 1] - y, height);
      if (start >= stop) continue;
      data[start * width + column - x] ^= 1;
      if (stop < height) data[stop * width + column - x] ^= 1;
    }
  }
  for (let index = width; index < data.length; index += 1) data[index] ^= data[index - width];
  return { x, y, width, height, data };
}

/**
 * What a round brush covers: the pixels whose centre (px + 0.5, py + 0.5) lies within the radius of the line
 * through the points, and the pixel under each point, so that the finest brush still marks something.
 *
 * @param {number} width Of the image, original pixels.
 * @param {number} height Of the image, original pixels.
 * @param {Array<{x: number, y: number}>} points Original pixels, continuous; they may lie outside the image.
 * @param {number} radius Original pixels.
 * @returns {Mask}
 */
export function strokeMask(width, height, points, radius) {
  const numbers = [radius, ...points.flatMap(({ x, y }) => [x, y])];
  if (!numbers.every(Number.isFinite) || radius < 0) {
    throw new Error("A brush stroke needs points with numbers and a radius from 0 on.");
  }
  if (points.length === 0) return emptyMask(width, height);
  const columns = Array.from({ length: width }, () => []);
  points.forEach((point, index) => {
    const before = points[Math.max(index - 1, 0)];
    const segment = segmentBetween(before, point);
    const firstColumn = Math.max(0, Math.floor(Math.min(before.x, point.x) - radius));
    const pastLastColumn = Math.min(width, Math.ceil(Math.max(before.x, point.x) + radius));
    for (let column = firstColumn; column < pastLastColumn; column += 1) {
      const rows = coveredRows(segment, radius, column + 0.5, height);
      if (rows) addSpan(columns[column], rows[0], rows[1]);
    }
    const [column, row] = [Math.floor(point.x), Math.floor(point.y)];
    if (column >= 0 && row >= 0 && column < width && row < height) addSpan(columns[column], row, row + 1);
  });
  return maskOfColumns(width, height, columns);
}

function segmentBetween(from, to) {
  const dx = to.x - from.x;
  const dy = to.y - from.y;
  return { from, to, dx, dy, squaredLength: dx * dx + dy * dy };
}

/** The rows [first, past last] of a column, x its centre, that a segment's brush covers; null for none. */
function coveredRows(segment, radius, x, height) {
  const { from, to } = segment;
  const band = bandOnVertical(segment, radius, x);
  const startHalf = Math.sqrt(radius * radius - (x - from.x) ** 2);
  const endHalf = Math.sqrt(radius * radius - (x - to.x) ** 2);
  // The reach on the column's middle is one piece, as discs and band together are convex; NaN is no reach.
  let [top, bottom] = band ?? [Infinity, -Infinity];
  if (startHalf >= 0) {
    top = Math.min(top, from.y - startHalf);
    bottom = Math.max(bottom, from.y + startHalf);
  }
  if (endHalf >= 0) {
    top = Math.min(top, to.y - endHalf);
    bottom = Math.max(bottom, to.y + endHalf);
  }
  let first = Math.max(0, Math.ceil(top - 0.5));
  let pastLast = Math.min(height, Math.floor(bottom - 0.5) + 1);
  if (top > bottom || first > pastLast) return null;
  // The reach is rounded; the distance decides at its two ends, where it may be off by a pixel.
  while (first > 0 && isNear(segment, radius, x, first - 0.5)) first -= 1;
  while (pastLast < height && isNear(segment, radius, x, pastLast + 0.5)) pastLast += 1;
  while (first < pastLast && !isNear(segment, radius, x, first + 0.5)) first += 1;
  while (first < pastLast && !isNear(segment, radius, x, pastLast - 0.5)) pastLast -= 1;
  return first < pastLast ? [first, pastLast] : null;
}

/** The part of the reach between the perpendiculars through a segment's ends, [top, bottom]. */
function bandOnVertical({ from, dx, dy, squaredLength }, radius, x) {
  const across = x - from.x;
  let top = -Infinity;
  let bottom = Infinity;
  if (dx !== 0) {
    const half = Math.abs((radius * Math.sqrt(squaredLength)) / dx);
    top = (dy * across) / dx - half;
    bottom = (dy * across) / dx + half;
  } else if (Math.abs(across) > radius) {
    return null;
  }
  if (dy !== 0) {
    const atStart = (-dx * across) / dy;
    const atEnd = (squaredLength - dx * across) / dy;
    top = Math.max(top, Math.min(atStart, atEnd));
    bottom = Math.min(bottom, Math.max(atStart, atEnd));
  } else if (dx === 0 || dx * across < 0 || dx * across > squaredLength) {
    return null;
  }
  return top <= bottom ? [from.y + top, from.y + bottom] : null;
}

/** Whether a point lies within the radius of a segment; without a division, so exact for halves of pixels. */
function isNear({ from, to, dx, dy, squaredLength }, radius, x, y) {
  const along = (x - from.x) * dx + (y - from.y) * dy;
  if (along > 0 && along < squaredLength) {
    const beside = (x - from.x) * dy - (y - from.y) * dx;
    return beside * beside <= radius * radius * squaredLength;
  }
  const end = along > 0 ? to : from;
  return (x - end.x) ** 2 + (y - end.y) ** 2 <= radius * radius;
}

/** Joins with the span before where they meet: along a stroke they mostly do, and the lists stay short. */
function addSpan(spans, start, stop) {
  const last = spans.at(-1);
  if (last && start <= last[1] && stop >= last[0]) {
    last[0] = Math.min(last[0], start);
    last[1] = Math.max(last[1], stop);
  } else {
    spans.push([start, stop]);
  }
}

function maskOfColumns(width, height, columns) {
  const spanCount = columns.reduce((sum, spans) => sum + spans.length, 0);
  const writer = new RunWriter(2 * spanCount + 2);
  for (const spans of columns) {
    spans.sort((a, b) => a[0] - b[0]);
    let row = 0;
    for (const [start, stop] of spans) {
      if (stop <= row) continue;
      const firstNew = Math.max(start, row);
      writer.add(false, firstNew - row);
      writer.add(true, stop - firstNew);
      row = stop;
    }
    writer.add(false, height - row);
  }
  return writer.toMask(width, height);
}
