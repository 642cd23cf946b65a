/**
 * PNG, written by hand: a canvas has only 8 bit RGBA, which is wrong for labels, and some browsers add noise to what is
 * read from one.
 */

import { slices } from "../core/slices.js";
import { crc32 } from "./crc.js";

const SIGNATURE = Uint8Array.of(0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a);
const GREY = 0;
const RGB = 2;
const FILTER_UP = 2;
const LONGEST_SIDE = 2 ** 31 - 1;
// Rows are compressed in blocks of about this size: a call per row would cost more than the row.
const BLOCK_BYTES = 1 << 17;

/**
 * Writes a greyscale PNG row by row, so that the raw image is never in memory as a whole.
 *
 * @param {number} width Pixels.
 * @param {number} height Pixels.
 * @param {8 | 16} bitDepth
 * @param {(y: number, row: Uint8Array | Uint16Array) => void} fillRow Called once for each y from 0 on, to
 *   write the row's values into `row` [width], which is zeroed: Uint8Array for 8 bits, Uint16Array for 16.
 * @param {Record<string, string>} [texts] Keyword -> text, kept in the file.
 * @returns {Promise<Blob>} Of type image/png.
 */
export async function greyPng(width, height, bitDepth, fillRow, texts = {}) {
  if (bitDepth !== 8 && bitDepth !== 16) throw new Error(`A grey PNG has 8 or 16 bits, not ${bitDepth}.`);
  return png({ width, height, bitDepth, colour: GREY }, fillRow, texts);
}

/**
 * As {@link greyPng}, in colour with 8 bits.
 * @param {number} width @param {number} height
 * @param {(y: number, row: Uint8Array) => void} fillRow writes [3 * width]: red, green and blue of each pixel
 * @returns {Promise<Blob>}
 */
export const rgbPng = (width, height, fillRow) => png({ width, height, bitDepth: 8, colour: RGB }, fillRow);

async function png(format, fillRow, texts = {}) {
  const { width, height } = format;
  const isSide = (side) => Number.isInteger(side) && side > 0 && side <= LONGEST_SIDE;
  if (!isSide(width) || !isSide(height)) throw new Error(`A PNG cannot have ${width} x ${height} pixels.`);
  const parts = [SIGNATURE, ...chunk("IHDR", header(format))];
  for (const [keyword, text] of Object.entries(texts)) parts.push(...chunk("iTXt", textBody(keyword, text)));
  const rows = filteredRows(format, fillRow);
  // Not "for await", which Safari's streams do not support.
  const reader = rows.pipeThrough(new CompressionStream("deflate")).getReader();
  for (let next = await reader.read(); !next.done; next = await reader.read()) {
    parts.push(...chunk("IDAT", next.value));
  }
  parts.push(...chunk("IEND", new Uint8Array(0)));
  return new Blob(parts, { type: "image/png" });
}

function header({ width, height, bitDepth, colour }) {
  const bytes = new Uint8Array(13);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, width);
  view.setUint32(4, height);
  bytes.set([bitDepth, colour], 8);
  return bytes;
}

/** Keyword, end, not compressed (2 bytes), no language, no translated keyword, then UTF-8. */
const textBody = (keyword, text) => new TextEncoder().encode(`${keyword}\0\0\0\0\0${text}`);

function chunk(type, body) {
  const head = new Uint8Array(8);
  new DataView(head.buffer).setUint32(0, body.length);
  head.set(new TextEncoder().encode(type), 4);
  const tail = new Uint8Array(4);
  new DataView(tail.buffer).setUint32(0, crc32(body, crc32(head.subarray(4))));
  return [head, body, tail];
}

/** The rows as PNG has them: the filter's number, then each byte less the one above, 0 for most of a mask. */
function filteredRows({ width, height, bitDepth, colour }, fillRow) {
  const samples = colour === RGB ? 3 * width : width;
  const row = bitDepth === 16 ? new Uint16Array(samples) : new Uint8Array(samples);
  const rowBytes = row.byteLength;
  const rowsInBlock = Math.max(1, Math.floor(BLOCK_BYTES / (rowBytes + 1)));
  let above = new Uint8Array(rowBytes);
  let current = new Uint8Array(rowBytes);
  let y = 0;
  const pause = slices();
  return new ReadableStream({
    async pull(controller) {
      await pause();
      const past = Math.min(height, y + rowsInBlock);
      const block = new Uint8Array((past - y) * (rowBytes + 1));
      for (let at = 0; y < past; y += 1) {
        row.fill(0);
        fillRow(y, row);
        toBigEndian(row, current);
        block[at++] = FILTER_UP;
        for (let index = 0; index < rowBytes; index += 1) block[at++] = current[index] - above[index];
        [above, current] = [current, above];
      }
      controller.enqueue(block);
      if (y === height) controller.close();
    },
  });
}

function toBigEndian(row, bytes) {
  if (row.BYTES_PER_ELEMENT === 1) {
    bytes.set(row);
    return;
  }
  for (let index = 0; index < row.length; index += 1) {
    bytes[2 * index] = row[index] >> 8;
    bytes[2 * index + 1] = row[index];
  }
}
