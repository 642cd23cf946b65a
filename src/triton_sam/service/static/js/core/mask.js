/**
 * A mask as run lengths, and COCO's text of it: the form in which masks travel and are kept.
 *
 * @typedef {object} Mask Immutable by convention, and a plain object, so that structuredClone and IndexedDB support it.
 * @property {number} width Original pixels.
 * @property {number} height Original pixels.
 * @property {Uint32Array} runs Column by column, background and object in turn, starting with background;
 *   they sum to width * height, and none but the first is 0.
 *
 * @typedef {{size: [number, number], counts: string}} CocoRle COCO's compressed form; size: [height, width].
 *
 * @typedef {{x: number, y: number, width: number, height: number}} Box Whole original pixels.
 */

const MOST_PIXELS = 2 ** 32 - 1;
const FIRST_CHARACTER = 48;
// A difference of two 32 bit counts has 33 bits with its sign: 7 groups of 5.
const MOST_GROUPS = 7;
const PAST_LARGEST = 32 ** MOST_GROUPS;

/** Collects runs in order and keeps them canonical: neighbours of one kind become one run. */
export class RunWriter {
  /** @param {number} capacity The most runs that can come out, the first background run included. */
  constructor(capacity) {
    this.runs = new Uint32Array(capacity);
    this.last = 0;
  }

  /**
   * @param {boolean} isObject
   * @param {number} length Pixels; 0 adds nothing.
   */
  add(isObject, length) {
    if (length === 0) return;
    if ((this.last & 1) !== (isObject ? 1 : 0)) this.last += 1;
    this.runs[this.last] += length;
  }

  /**
   * @param {number} width
   * @param {number} height
   * @returns {Mask}
   */
  toMask(width, height) {
    return { width, height, runs: this.runs.slice(0, this.last + 1) };
  }
}

/**
 * @param {number} width Original pixels.
 * @param {number} height Original pixels.
 * @returns {Mask} All background.
 */
export function emptyMask(width, height) {
  requireSize(width, height);
  return { width, height, runs: Uint32Array.of(width * height) };
}

/**
 * @param {CocoRle} document COCO's compressed form, as the server sends it.
 * @returns {Mask}
 * @throws {Error} One sentence, if the document is not a mask.
 */
export function fromCocoRle(document) {
  const { size, counts } = document ?? {};
  if (!Array.isArray(size) || size.length !== 2) throw new Error("A mask's size is [height, width].");
  if (typeof counts !== "string") throw new Error("A mask's counts are COCO's compressed text.");
  const [height, width] = size;
  requireSize(width, height);
  const { runs, isCanonical } = unpackCounts(counts, width * height);
  return isCanonical ? { width, height, runs } : canonicalMask(width, height, runs);
}

/**
 * @param {Mask} mask
 * @returns {CocoRle} The same text as pycocotools writes.
 */
export function toCocoRle(mask) {
  const { width, height, runs } = mask;
  const characters = new Uint8Array(runs.length * MOST_GROUPS);
  let length = 0;
  for (let index = 0; index < runs.length; index += 1) {
    let rest = index > 2 ? runs[index] - runs[index - 2] : runs[index];
    for (let more = true; more; length += 1) {
      const group = rest & 0x1f;
      // Not >>, which would cut the difference to 32 bits.
      rest = Math.floor(rest / 32);
      more = rest !== (group & 0x10 ? -1 : 0);
      characters[length] = FIRST_CHARACTER + (more ? group | 0x20 : group);
    }
  }
  return { size: [height, width], counts: new TextDecoder().decode(characters.subarray(0, length)) };
}

/**
 * @param {Mask} mask
 * @returns {number} Object pixels.
 */
export function area(mask) {
  let pixels = 0;
  for (let index = 1; index < mask.runs.length; index += 2) pixels += mask.runs[index];
  return pixels;
}

/**
 * @param {Mask} mask
 * @returns {Box | null} The smallest box around all object pixels, as COCO's toBbox; null for an empty mask.
 */
export function bounds(mask) {
  const { height, runs } = mask;
  if (runs.length < 2) return null;
  let top = height;
  let bottom = 0;
  let end = 0;
  let lastObjectPixel = 0;
  for (let index = 0; index + 1 < runs.length; index += 2) {
    const start = end + runs[index];
    end = start + runs[index + 1];
    lastObjectPixel = end - 1;
    const firstRow = start % height;
    const pastLastRow = firstRow + runs[index + 1];
    if (pastLastRow > height) {
      // The run goes on in the next column: it has a pixel in the bottom row and one in the top row.
      top = 0;
      bottom = height;
    } else {
      if (firstRow < top) top = firstRow;
      if (pastLastRow > bottom) bottom = pastLastRow;
    }
  }
  const left = Math.floor(runs[0] / height);
  return { x: left, y: top, width: Math.floor(lastObjectPixel / height) + 1 - left, height: bottom - top };
}

/**
 * @param {Mask} mask
 * @param {number} x Original pixels, whole or continuous: 3.7 lies in column 3.
 * @param {number} y Original pixels.
 * @returns {boolean} Whether the pixel there is an object's; outside the image none is.
 */
export function contains(mask, x, y) {
  const { width, height, runs } = mask;
  if (!(x >= 0 && y >= 0 && x < width && y < height)) return false;
  const position = Math.floor(x) * height + Math.floor(y);
  let end = 0;
  let index = 0;
  for (; index < runs.length; index += 1) {
    end += runs[index];
    if (position < end) break;
  }
  return (index & 1) === 1;
}

/**
 * @param {Mask} a
 * @param {Mask} b
 * @returns {boolean} Whether both have the same size and the same pixels.
 */
export function equal(a, b) {
  if (a.width !== b.width || a.height !== b.height || a.runs.length !== b.runs.length) return false;
  return a.runs.every((run, index) => run === b.runs[index]);
}

function requireSize(width, height) {
  const isSide = (side) => Number.isInteger(side) && side > 0;
  if (!isSide(width) || !isSide(height) || width * height > MOST_PIXELS) {
    throw new Error(`A mask has whole sides from 1 on and below 2^32 pixels, not ${width} x ${height}.`);
  }
}

/**
 * COCO's text: each count as its difference to the count two before, in groups of 5 bits, lowest first.
 * Sums and products instead of bit operations, because these would cut a count to 31 bits.
 */
function unpackCounts(text, pixels) {
  const runs = new Uint32Array(text.length);
  let count = 0;
  let total = 0;
  let value = 0;
  let scale = 1;
  let isCanonical = true;
  for (let index = 0; index < text.length; index += 1) {
    const code = text.charCodeAt(index) - FIRST_CHARACTER;
    if (code < 0 || code > 63) throw new Error(`A mask's counts have a wrong character at ${index}.`);
    value += (code & 0x1f) * scale;
    scale *= 32;
    if (code & 0x20) {
      if (scale === PAST_LARGEST) throw new Error(`A mask's counts have too large a number at ${index}.`);
      continue;
    }
    if (code & 0x10) value -= scale;
    if (count > 2) value += runs[count - 2];
    total += value;
    if (value < 0 || total > pixels) throw new Error(`A mask's counts leave its pixels at ${index}.`);
    if (value === 0 && count > 0) isCanonical = false;
    runs[count] = value;
    count += 1;
    value = 0;
    scale = 1;
  }
  if (scale !== 1) throw new Error("A mask's counts end in the middle of a number.");
  if (total !== pixels) throw new Error(`A mask's counts fill ${total} of its ${pixels} pixels.`);
  return { runs: runs.slice(0, count), isCanonical };
}

function canonicalMask(width, height, runs) {
  const writer = new RunWriter(runs.length + 1);
  runs.forEach((run, index) => writer.add((index & 1) === 1, run));
  return writer.toMask(width, height);
}
