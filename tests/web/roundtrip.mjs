/**
 * What the page's modules make of masks, for Python's readers: JSON {masks: [{size, counts}]} on standard input,
 * all of one size; on standard output the masks written again and every export, files as base64.
 */

import { text } from "node:stream/consumers";

import { area, bounds, fromCocoRle, toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { cocoDocument } from "../../src/triton_sam/service/static/js/export/coco.js";
import { geoJson } from "../../src/triton_sam/service/static/js/export/geojson.js";
import { labelImage, maskImage } from "../../src/triton_sam/service/static/js/export/label_image.js";
import { zip } from "../../src/triton_sam/service/static/js/export/zip.js";

const base64 = async (blob) => Buffer.from(await blob.arrayBuffer()).toString("base64");

const masks = JSON.parse(await text(process.stdin)).masks.map(fromCocoRle);
const picture = { name: "Bild ä.png", width: masks[0].width, height: masks[0].height };
const objects = masks.map((mask, index) => ({
  name: ["cell", "débris"][index % 2],
  colour: "#1e90ff",
  mask,
  score: index % 3 ? index / 1000 : null,
}));
const coco = cocoDocument(picture, objects);
const labels = await labelImage(picture, objects);
const maskImages = await Promise.all(masks.map(maskImage));
const archive = await zip([
  { name: "coco ä.json", blob: new Blob([JSON.stringify(coco)]) },
  { name: "masks/labels.png", blob: labels },
  { name: "empty.txt", blob: new Blob([]) },
]);
const result = {
  masks: masks.map(toCocoRle),
  areas: masks.map(area),
  bounds: masks.map(bounds),
  coco,
  geojson: geoJson(picture, objects),
  labels: await base64(labels),
  maskImages: await Promise.all(maskImages.map(base64)),
  zip: await base64(archive),
};
process.stdout.write(JSON.stringify(result));
