/**
 * Reads PNGs with one value a pixel, exactly: a canvas has 8 bits only and changes colours.
 *
 * @typedef {{width: number, height: number, bitDepth: number, values: Uint8Array|Uint16Array, texts: Record<string, string>}} GreyImage
 *   values [H,W], row by row: grey values, or the indices of a palette
 */
const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];
const COLOUR_TYPES = { 0: 1, 2: 3, 3: 1, 4: 2, 6: 4 };
const HAS_COLOURS = new Set([2, 6]);
const MOST_PIXELS = 2 ** 28;

/** @param {Uint8Array} head @returns {boolean} */
export const isPng = (head) => SIGNATURE.every((byte, index) => head[index] === byte);

/**
 * @param {Uint8Array} bytes of a whole file, or of its beginning
 * @returns {Record<string, string>} the uncompressed texts before the pixels; none if it is not a PNG
 */
export function pngTexts(bytes) {
  const texts = {};
  if (!isPng(bytes)) return texts;
  for (const { type, body } of chunksOf(bytes)) {
    if (type === "IDAT") break;
    const [keyword, text] = textOf(type, body);
    if (keyword) texts[keyword] = text;
  }
  return texts;
}

/**
 * @param {Uint8Array} bytes of the file
 * @param {() => Promise<void>|null} [pause] of slices(): awaited between rows
 * @returns {Promise<GreyImage>}
 * @throws {Error} one sentence, if it has colours, is interlaced or broken
 */
export async function readGreyPng(bytes, pause = () => null) {
  if (!isPng(bytes)) throw new Error("this is not a PNG file");
  const chunks = [...chunksOf(bytes)];
  const header = headerOf(chunks[0]);
  const packed = chunks.filter(({ type }) => type === "IDAT").map(({ body }) => body);
  const stream = new Blob(packed).stream().pipeThrough(new DecompressionStream("deflate"));
  const values = await valuesOf(stream.getReader(), header, pause);
  const { width, height, bitDepth } = header;
  return { width, height, bitDepth, values, texts: pngTexts(bytes) };
}

function* chunksOf(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = SIGNATURE.length; at + 8 <= bytes.length; ) {
    const length = view.getUint32(at);
    const type = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    if (at + 12 + length > bytes.length) return; // the beginning of a file only, or a file that is cut off
    yield { type, body: bytes.subarray(at + 8, at + 8 + length) };
    at += 12 + length;
  }
}

function headerOf(chunk) {
  if (chunk?.type !== "IHDR" || chunk.body.length !== 13) throw new Error("this PNG file is broken");
  const view = new DataView(chunk.body.buffer, chunk.body.byteOffset, 13);
  const [width, height] = [view.getUint32(0), view.getUint32(4)];
  const [bitDepth, colourType, , , interlace] = chunk.body.subarray(8);
  const channels = COLOUR_TYPES[colourType];
  if (!width || !height || !channels || ![1, 2, 4, 8, 16].includes(bitDepth)) throw new Error("this PNG file is broken");
  if (HAS_COLOURS.has(colourType)) throw new Error("this PNG has colours: a label image has one grey value or palette index a pixel");
  if (interlace) throw new Error("this PNG is interlaced: save it without");
  if (width * height > MOST_PIXELS) throw new Error(`a label image of ${width} x ${height} pixels is too large`);
  return { width, height, bitDepth, channels };
}

async function valuesOf(reader, { width, height, bitDepth, channels }, pause) {
  const rowBytes = Math.ceil((width * channels * bitDepth) / 8);
  const pixelBytes = Math.max(1, (channels * bitDepth) >> 3);
  const values = bitDepth === 16 ? new Uint16Array(width * height) : new Uint8Array(width * height);
  const line = new Uint8Array(rowBytes + 1);
  let above = new Uint8Array(rowBytes);
  let current = new Uint8Array(rowBytes);
  let filled = 0;
  let y = 0;
  for (let next = await reader.read(); !next.done && y < height; next = await reader.read()) {
    for (let at = 0; at < next.value.length && y < height; ) {
      const taken = Math.min(line.length - filled, next.value.length - at);
      line.set(next.value.subarray(at, at + taken), filled);
      at += taken;
      filled += taken;
      if (filled < line.length) break;
      unfilter(line, above, current, pixelBytes);
      unpackRow(current, values, y * width, width, bitDepth, channels);
      [above, current] = [current, above];
      filled = 0;
      y += 1;
      await pause();
    }
  }
  if (y < height) throw new Error("this PNG file is cut off");
  return values;
}

/** PNG's filters: each byte was stored less a prediction from its neighbours. */
function unfilter(line, above, current, step) {
  const filter = line[0];
  if (filter > 4) throw new Error("this PNG file is broken");
  for (let index = 0; index < current.length; index += 1) {
    const left = index >= step ? current[index - step] : 0;
    const up = above[index];
    const corner = index >= step ? above[index - step] : 0;
    const predicted = filter === 0 ? 0 : filter === 1 ? left : filter === 2 ? up : filter === 3 ? (left + up) >> 1 : paeth(left, up, corner);
    current[index] = line[index + 1] + predicted;
  }
}

function paeth(left, up, corner) {
  const estimate = left + up - corner;
  const [toLeft, toUp, toCorner] = [Math.abs(estimate - left), Math.abs(estimate - up), Math.abs(estimate - corner)];
  if (toLeft <= toUp && toLeft <= toCorner) return left;
  return toUp <= toCorner ? up : corner;
}

function unpackRow(row, values, start, width, bitDepth, channels) {
  for (let x = 0; x < width; x += 1) {
    const sample = x * channels;
    if (bitDepth === 16) values[start + x] = (row[2 * sample] << 8) | row[2 * sample + 1];
    else if (bitDepth === 8) values[start + x] = row[sample];
    else {
      const bit = sample * bitDepth;
      values[start + x] = (row[bit >> 3] >> (8 - bitDepth - (bit & 7))) & ((1 << bitDepth) - 1);
    }
  }
}

/** @returns {[string, string]|[]} */
function textOf(type, body) {
  if (type !== "tEXt" && type !== "iTXt") return [];
  const end = body.indexOf(0);
  if (end < 0) return [];
  const keyword = latin1(body.subarray(0, end));
  if (type === "tEXt") return [keyword, latin1(body.subarray(end + 1))];
  if (body[end + 1] !== 0) return []; // compressed
  const language = body.indexOf(0, end + 3);
  const translated = body.indexOf(0, language + 1);
  return language < 0 || translated < 0 ? [] : [keyword, new TextDecoder().decode(body.subarray(translated + 1))];
}

const latin1 = (bytes) => Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
