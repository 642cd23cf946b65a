/** Which files are scientific images, by their first bytes: the rest of this folder is loaded only for such files. */

const HEAD_BYTES = 64;

/** @param {Blob} file @returns {Promise<Uint8Array>} its first bytes */
export const headOf = async (file) => new Uint8Array(await file.slice(0, HEAD_BYTES).arrayBuffer());

/**
 * @param {Uint8Array} head the file's first bytes
 * @returns {boolean} whether it may have more than a browser shows: TIFF, PNG of 16 bits, JPEG 2000, PGM and PPM
 */
export function mayHaveMore(head) {
  const text = String.fromCharCode(...head.slice(0, HEAD_BYTES));
  const isTiff = ["II*\0", "MM\0*", "II+\0", "MM\0+"].some((mark) => text.startsWith(mark));
  const isDeepPng = text.slice(1, 4) === "PNG" && head[24] === 16;
  const isJpeg2000 = text.slice(4, 8) === "jP  " || text.startsWith("\xff\x4f\xff\x51");
  return isTiff || isDeepPng || isJpeg2000 || /^P[56]\s/.test(text);
}
