/**
 * Cleaning of masks: small holes are filled and small islands removed, as core/mask_cleaning.py does on the server.
 *
 * A hole is background that the object encloses: connected by edges, and not reaching the image's border. An island is a
 * part of the object, connected by edges or corners. Holes are filled first; the largest island always stays.
 *
 * @typedef {import("./mask.js").Mask} Mask
 * @typedef {import("./regions.js").Spans} Spans
 * @typedef {{holes: number, islands: number}} Cleaning Regions with fewer original pixels go; 0 keeps all of a kind.
 */
import { RunWriter } from "./mask.js";
import { columnSpans } from "./mask_ops.js";
import { connected, rootOf } from "./regions.js";

/** Mask -> its last cleaned form: the same masks are drawn, listed and exported again and again. */
const cleanedMasks = new WeakMap();

/**
 * @param {Mask} mask
 * @param {Cleaning} cleaning
 * @returns {Mask} The same mask if nothing is cleaned.
 */
export function cleanMask(mask, { holes, islands }) {
  const known = cleanedMasks.get(mask);
  if (known?.holes === holes && known.islands === islands) return known.cleaned;
  const filled = holes > 1 ? withoutHoles(mask, holes) : mask; // no region has fewer pixels than one
  const cleaned = islands > 1 ? withoutIslands(filled, islands) : filled;
  cleanedMasks.set(mask, { holes, islands, cleaned });
  return cleaned;
}

function withoutHoles(mask, size) {
  const gaps = gapsOf(mask);
  const parents = connected(gaps, false);
  const areas = areasOf(gaps, parents);
  const isOutside = new Uint8Array(parents.length);
  const columns = gaps.offsets.length - 1;
  for (let x = 0; x < columns; x += 1) {
    // Beside the first and the last column of the object there is only background, or the image's border.
    const isEdge = x === 0 || x === columns - 1;
    for (let index = gaps.offsets[x]; index < gaps.offsets[x + 1]; index += 1) {
      const touches = isEdge || gaps.spans[2 * index] === 0 || gaps.spans[2 * index + 1] === mask.height;
      if (touches) isOutside[rootOf(parents, index)] = 1;
    }
  }
  const isHole = (index) => {
    const root = rootOf(parents, index);
    return !isOutside[root] && areas[root] < size;
  };
  return rewritten(mask, gaps, isHole, true);
}

function withoutIslands(mask, size) {
  const parts = partsOf(mask);
  const parents = connected(parts, true);
  const areas = areasOf(parts, parents);
  let largest = 0;
  for (const area of areas) if (area > largest) largest = area;
  const least = Math.min(size, largest);
  return rewritten(mask, parts, (index) => areas[rootOf(parents, index)] < least, false);
}

/** @returns {Spans} of the object; column 0 is the first one that it has pixels in, and the last one is its last */
function partsOf(mask) {
  const { offsets, spans, firstColumn, pastLastColumn } = columnSpans(mask);
  return { offsets: offsets.subarray(firstColumn, pastLastColumn + 1), spans };
}

/** @returns {Spans} of the background, in the same columns */
function gapsOf(mask) {
  const { offsets, spans } = partsOf(mask);
  const columns = offsets.length - 1;
  const gapOffsets = new Uint32Array(columns + 1);
  const gaps = new Uint32Array(spans.length + 2 * columns);
  let count = 0;
  const add = (start, end) => {
    if (start === end) return;
    gaps[count] = start;
    gaps[count + 1] = end;
    count += 2;
  };
  for (let x = 0; x < columns; x += 1) {
    let end = 0;
    for (let index = offsets[x]; index < offsets[x + 1]; index += 1) {
      add(end, spans[2 * index]);
      end = spans[2 * index + 1];
    }
    add(end, mask.height);
    gapOffsets[x + 1] = count / 2;
  }
  return { offsets: gapOffsets, spans: gaps.subarray(0, count) };
}

/** @returns {Float64Array} pixels of each region, at its root */
function areasOf({ spans }, parents) {
  const areas = new Float64Array(parents.length);
  for (let index = 0; index < parents.length; index += 1) {
    areas[rootOf(parents, index)] += spans[2 * index + 1] - spans[2 * index];
  }
  return areas;
}

/**
 * @param {Mask} mask
 * @param {Spans} all of the mask's object, or of the background between
 * @param {(index: number) => boolean} isChanged whether a span changes sides
 * @param {boolean} isObject what changed spans become
 * @returns {Mask}
 */
function rewritten(mask, { offsets, spans }, isChanged, isObject) {
  const { width, height } = mask;
  const { firstColumn, pastLastColumn } = columnSpans(mask);
  const writer = new RunWriter(spans.length + 2 * offsets.length + 1);
  let hasChanged = false;
  writer.add(false, firstColumn * height);
  for (let x = 0; x + 1 < offsets.length; x += 1) {
    let end = 0;
    for (let index = offsets[x]; index < offsets[x + 1]; index += 1) {
      writer.add(isObject, spans[2 * index] - end); // between spans of one kind lies the other
      end = spans[2 * index + 1];
      const changes = isChanged(index);
      hasChanged ||= changes;
      writer.add(changes === isObject, end - spans[2 * index]);
    }
    writer.add(isObject, height - end);
  }
  writer.add(false, (width - pastLastColumn) * height);
  return hasChanged ? writer.toMask(width, height) : mask;
}
