/** A file -> pixels that the page can draw, equal to what the model sees. */
import { Problem } from "./net/problems.js";

const PNG_SIGNATURE = [0x89, 0x50, 0x4e, 0x47];
const BIT_DEPTH_AT = 24;
/** Canvases end here in most browsers. */
const LONGEST_SIDE = 16_384;

/**
 * @param {Blob} file
 * @param {(file: Blob) => Promise<Blob>} convert asks the service for a JPEG of what the browser cannot show
 * @returns {Promise<ImageBitmap>} upright
 */
export async function decode(file, convert) {
  const bitmap = (await isDeep(file)) ? null : await bitmapOf(file);
  const shown = bitmap ?? (await bitmapOf(await convert(file)));
  if (!shown) throw new Problem("refused", "this file cannot be shown: open a PNG, JPEG, WebP or TIFF image");
  if (Math.max(shown.width, shown.height) > LONGEST_SIDE) {
    shown.close();
    throw new Problem("refused", `browsers draw up to ${LONGEST_SIDE} pixels a side: open a smaller image, or a part`);
  }
  return shown;
}

async function bitmapOf(file) {
  try {
    return await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return null; // TIFF, JPEG 2000, or no image at all: the service knows
  }
}

/** 12 bits of a camera in a 16-bit file look black in a browser; the service scales them as the model sees them. */
async function isDeep(file) {
  const head = new Uint8Array(await file.slice(0, BIT_DEPTH_AT + 1).arrayBuffer());
  return PNG_SIGNATURE.every((byte, index) => head[index] === byte) && head[BIT_DEPTH_AT] === 16;
}
