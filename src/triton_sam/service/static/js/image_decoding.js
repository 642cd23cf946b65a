/** Decodes an image file to pixels that the page can draw, and to a file that the server can read. */
import { pngOfBitmap } from "./export/canvas_png.js";
import { Problem } from "./net/problems.js";

/** The largest canvas side in most browsers. */
const MAX_SIDE = 16_384;
/** Types that both the browser and the server can read. */
const COMMON = ["image/png", "image/jpeg", "image/webp", "image/bmp", "image/gif"];
const HEAD_BYTES = 32;

/**
 * @param {Blob} file
 * @param {(file: Blob) => Promise<Blob>} convert requests a JPEG from the service, for files that the browser cannot show
 * @returns {Promise<{bitmap: ImageBitmap, file: Blob}>} upright; the file is replaced by a PNG if the server cannot read it
 */
export async function decode(file, convert) {
  const own = looksOther(new Uint8Array(await file.slice(0, HEAD_BYTES).arrayBuffer())) ? null : await bitmapOf(file);
  const bitmap = own ?? (await bitmapOf(await convert(file)));
  if (!bitmap) throw new Problem("refused", "this file cannot be shown: open a PNG, JPEG, WebP or TIFF image");
  if (Math.max(bitmap.width, bitmap.height) > MAX_SIDE) {
    bitmap.close();
    throw new Problem("refused", `browsers draw at most ${MAX_SIDE} pixels per side: open a smaller image, or a part of it`);
  }
  const isReadable = !own || !file.type || COMMON.includes(file.type);
  return { bitmap, file: isReadable ? file : await pngOf(bitmap) };
}

async function bitmapOf(file) {
  try {
    return await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return null; // TIFF, JPEG 2000, or not an image: the service decides
  }
}

/**
 * Whether a browser shows a file differently from what the model sees: 12-bit camera data in a 16-bit PNG looks black, and
 * browsers ignore the EXIF rotation of WebP.
 * @param {Uint8Array} head the file's first bytes
 */
export function looksOther(head) {
  const text = (from, to) => String.fromCharCode(...head.slice(from, to));
  const isDeepPng = text(1, 4) === "PNG" && head[24] === 16;
  const isWebpWithExif = text(0, 4) === "RIFF" && text(8, 16) === "WEBPVP8X" && (head[20] & 0b1000) !== 0;
  return isDeepPng || isWebpWithExif;
}

/** For formats that only browsers read, such as AVIF. The bitmap itself is still needed. */
const pngOf = async (bitmap) => pngOfBitmap(await createImageBitmap(bitmap));
