/**
 * A mask's exact border as polygons.
 *
 * @typedef {import("./mask.js").Mask} Mask
 * @typedef {Array<[number, number]>} Ring Closed, first point = last; original pixels, xy, pixel corners.
 * @typedef {Array<Ring>} Polygon The outer ring, then its holes.
 */

import { bounds } from "./mask.js";
import { columnSpans, toBitmap } from "./mask_ops.js";
import { connected, rootOf } from "./regions.js";

const OBJECT = 1;
const TOP_EDGE_TRACED = 2;

/**
 * The border of a mask along its pixels' edges, collinear points merged.
 *
 * Pixels that touch at corners only belong to different polygons, and no ring comes to one corner twice: a
 * hole that touches its outer ring or another hole at a corner is a ring of its own. So every polygon is
 * valid by the rules of OGC, which shapely checks.
 *
 * Orientation as RFC 7946, on the numbers as they are (y grows downwards): the signed area
 * sum(x[i] * y[i+1] - x[i+1] * y[i]) / 2 is positive for outer rings and negative for holes.
 *
 * @param {Mask} mask
 * @returns {Array<Polygon>} One for each group of pixels connected by edges, from left to right; none for an
 *   empty mask.
 */
export function polygonsOf(mask) {
  const box = bounds(mask);
  if (!box) return [];
  // One pixel of background all around, so that the tracing never reads outside the grid.
  const grid = toBitmap(mask, { x: box.x - 1, y: box.y - 1, width: box.width + 2, height: box.height + 2 });
  const groups = connected(columnSpans(mask), false);
  const polygons = new Map();
  const { offsets, spans } = columnSpans(mask);
  // Every ring, a hole's too, has some edge that is the top of a span.
  for (let x = box.x; x < box.x + box.width; x += 1) {
    for (let index = offsets[x]; index < offsets[x + 1]; index += 1) {
      const start = (spans[2 * index] - grid.y) * grid.width + x - grid.x;
      if (grid.data[start] & TOP_EDGE_TRACED) continue;
      const group = rootOf(groups, index);
      if (!polygons.has(group)) polygons.set(group, { outer: null, holes: [] });
      for (const loop of traceLoops(grid, start)) addRing(polygons.get(group), ringOf(grid, loop));
    }
  }
  return [...polygons.values()].map(({ outer, holes }) => [outer, ...holes]);
}

/**
 * Walks around the border from a pixel's top left corner to the right, the object on the side of growing y.
 *
 * A corner's number is the grid's index of the pixel right below it. Where two object pixels touch at a
 * corner only, the walk stays with its own; should it come there a second time, both belong to one object,
 * and what was walked between is cut off as a loop of its own.
 *
 * @returns {Array<Array<number>>} Loops of corners, not closed, each corner once.
 */
function traceLoops({ data, width }, start) {
  // By direction: right, down, left, up.
  const steps = [1, width, -1, -width];
  const aheadOnObjectSide = [0, -1, -width - 1, -width];
  const aheadOnOtherSide = [-width, 0, -1, -width - 1];
  const loops = [];
  const corners = [];
  const placeOfPinch = new Map();
  let corner = start;
  let direction = 0;
  do {
    if (direction === 0) data[corner] |= TOP_EDGE_TRACED;
    corner += steps[direction];
    const objectAhead = (data[corner + aheadOnObjectSide[direction]] & OBJECT) === OBJECT;
    const otherAhead = (data[corner + aheadOnOtherSide[direction]] & OBJECT) === OBJECT;
    if (objectAhead && !otherAhead) continue;
    if (!objectAhead && otherAhead) {
      const place = placeOfPinch.get(corner);
      // A position may be outdated, if its corner was removed with a loop.
      if (place !== undefined && corners[place] === corner) loops.push(corners.splice(place));
      placeOfPinch.set(corner, corners.length);
    }
    corners.push(corner);
    direction = (direction + (objectAhead ? 3 : 1)) & 3;
  } while (corner !== start || direction !== 0);
  loops.push(corners);
  return loops;
}

function ringOf(grid, loop) {
  const { x, y, width } = grid;
  const ring = loop.map((corner) => [x + (corner % width), y + Math.floor(corner / width)]);
  ring.push([...ring[0]]);
  return ring;
}

function addRing(polygon, ring) {
  if (signedArea(ring) > 0) polygon.outer = ring;
  else polygon.holes.push(ring);
}

function signedArea(ring) {
  let doubled = 0;
  for (let index = 1; index < ring.length; index += 1) {
    doubled += ring[index - 1][0] * ring[index][1] - ring[index][0] * ring[index - 1][1];
  }
  return doubled / 2;
}
