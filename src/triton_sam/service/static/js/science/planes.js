/**
 * The samples of one page of a file, as the service sends them: [C,H,W], planar, 8 or 16 bits.
 *
 * @typedef {object} Planes
 * @property {number} width @property {number} height pixels
 * @property {(Uint8Array|Uint16Array)[]} data one array [H*W] for each channel
 *
 * @typedef {object} Range the file's value of a sample: low for sample 0, high for the largest sample
 * @property {number} low @property {number} high
 *
 * @typedef {object} PlanesHeader
 * @property {number} width @property {number} height @property {number} channels
 * @property {number} pages that were sent
 * @property {"uint8"|"uint16"} dtype
 * @property {Range} range
 * @property {number} notFinite samples that were NaN or infinite; they are 0 here
 */
import { Problem } from "../net/problems.js";

const BYTES = { uint8: 1, uint16: 2 };

/** @param {string} dtype @returns {number} of different samples */
export const levelsOf = (dtype) => 256 ** BYTES[dtype];

/** @param {string|null} text the header X-Planes @returns {PlanesHeader} */
export function parseHeader(text) {
  const unreadable = () => new Problem("refused", "the server's description of this image cannot be read: reload the page");
  let header;
  try {
    header = JSON.parse(text);
  } catch {
    throw unreadable();
  }
  const { width, height, channels, pages, dtype, low, high, not_finite: notFinite = 0 } = header ?? {};
  const areCounts = [width, height, channels, pages].every((count) => Number.isInteger(count) && count > 0);
  if (!areCounts || !Object.hasOwn(BYTES, dtype)) throw unreadable();
  // 8-bit samples and integers of up to 16 bits are the file's own values.
  const own = { low: 0, high: levelsOf(dtype) - 1 };
  const range = dtype === "uint16" && Number.isFinite(low) && Number.isFinite(high) ? { low, high } : own;
  return { width, height, channels, pages, dtype, range, notFinite };
}

/** @param {{width: number, height: number, channels: number, dtype: string}} header @returns {number} of one page */
export const pageBytes = ({ width, height, channels, dtype }) => width * height * channels * BYTES[dtype];

/**
 * @param {ArrayBuffer} buffer of one page, little-endian, as are all machines with a browser
 * @param {{width: number, height: number, channels: number, dtype: string}} header
 * @returns {Planes}
 */
export function planesOf(buffer, { width, height, channels, dtype }) {
  if (buffer.byteLength !== pageBytes({ width, height, channels, dtype })) {
    throw new Problem("unreachable", "the connection broke while the image was being read");
  }
  const Samples = dtype === "uint8" ? Uint8Array : Uint16Array;
  const size = width * height;
  const data = Array.from({ length: channels }, (_, channel) =>
    new Samples(buffer, channel * size * Samples.BYTES_PER_ELEMENT, size));
  return { width, height, data };
}

/** @param {Blob} planes @returns {Promise<Blob>} smaller, to be kept in the browser's storage */
export const compressed = (planes) => through(planes, new CompressionStream("deflate-raw"));

/** @param {Blob} kept of {@link compressed} @returns {Promise<ArrayBuffer>} */
export const expanded = async (kept) => (await through(kept, new DecompressionStream("deflate-raw"))).arrayBuffer();

const through = (blob, stream) => new Response(blob.stream().pipeThrough(stream)).blob();

/** @param {number} sample @param {Range} range @param {number} levels @returns {number} in the file */
export const valueOf = (sample, { low, high }, levels) => low + (sample / (levels - 1)) * (high - low);

/** @param {number} value in the file @param {Range} range @param {number} levels @returns {number} the nearest sample */
export function sampleOf(value, { low, high }, levels) {
  const sample = high > low ? ((value - low) / (high - low)) * (levels - 1) : 0;
  return Math.min(levels - 1, Math.max(0, Math.round(sample)));
}
