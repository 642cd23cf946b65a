/** The values of a label image: a PNG is read here, a TIFF by the service. */
import { Problem } from "../net/problems.js";
import { isPng, readGreyPng } from "./png_reader.js";

const MOST = 65535;

/** @param {Uint8Array} head @returns {boolean} */
export const isTiff = (head) => ["II*\0", "MM\0*", "II+\0", "MM\0+"].includes(String.fromCharCode(...head.subarray(0, 4)));

/** Whether a PNG has one value a pixel: a photograph has colours. @param {Uint8Array} head */
export const isGreyPng = (head) => isPng(head) && [0, 3].includes(head[25]);

/**
 * @param {import("../app.js").App} app @param {File} file @param {() => Promise<void>|null} pause of slices()
 * @returns {Promise<{width: number, height: number, values: ArrayLike<number>, texts: Record<string, string>}>} values [H,W]
 */
export async function readLabels(app, file, pause) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  try {
    if (isPng(bytes)) return await readGreyPng(bytes, pause);
  } catch (error) {
    throw new Problem("refused", `${file.name}: ${error.message}.`);
  }
  if (isTiff(bytes)) return await readTiff(app, file);
  throw new Problem("refused", `${file.name} is neither a PNG nor a TIFF: label images are one of these.`);
}

async function readTiff(app, file) {
  const { header, body } = await app.connection.persist(() => app.service.planes(file, 0, 1));
  const { width, height, channels, dtype, low, high } = JSON.parse(header);
  if (channels !== 1) throw new Problem("refused", `${file.name} has ${channels} channels: a label image has one.`);
  const buffer = await body.arrayBuffer();
  if (dtype === "uint8") return { width, height, values: new Uint8Array(buffer), texts: {} };
  // Other numbers than those of 16 bits come scaled to them: different ones stay different, and 0 is 0 if it is the least.
  const isScaled = low !== 0 || high !== MOST;
  if (isScaled && (low !== 0 || high > MOST)) {
    throw new Problem("refused", `${file.name} has values from ${low} to ${high}: labels are from 0 to ${MOST.toLocaleString("en")}.`);
  }
  return { width, height, values: new Uint16Array(buffer), texts: {} };
}
