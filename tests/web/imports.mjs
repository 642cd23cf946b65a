/**
 * What the page's modules read, for comparison with Python's readers. JSON on standard input:
 * {polygons: [{segmentation, width, height}], pngs: [base64]}; on standard output COCO's run lengths of the polygons,
 * and {width, height, bitDepth, values} or {error} of each PNG.
 */

import { text } from "node:stream/consumers";

import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { maskOfSegmentation } from "../../src/triton_sam/service/static/js/import/coco.js";
import { readGreyPng } from "../../src/triton_sam/service/static/js/import/png_reader.js";

const { polygons, pngs } = JSON.parse(await text(process.stdin));

async function read(png) {
  try {
    const { width, height, bitDepth, values } = await readGreyPng(new Uint8Array(Buffer.from(png, "base64")));
    return { width, height, bitDepth, values: [...values] };
  } catch (error) {
    return { error: error.message };
  }
}

const result = {
  masks: polygons.map(({ segmentation, ...size }) => toCocoRle(maskOfSegmentation(segmentation, size))),
  pngs: await Promise.all(pngs.map(read)),
};
process.stdout.write(JSON.stringify(result));
