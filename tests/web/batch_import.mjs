/**
 * What the page reads from the files of a batch job: JSON {coco, geojson, png} on standard input (png in base64), and
 * JSON {coco: [[file name, class, mask], ...], geojson: [image name, [[class, mask], ...]], isLabels} on standard output.
 */

import { text } from "node:stream/consumers";

import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { LABELS } from "../../src/triton_sam/service/static/js/core/label_keyword.js";
import { objectOf, isCoco, readCoco } from "../../src/triton_sam/service/static/js/import/coco.js";
import { isGeoJson, objectOfFeature, readGeoJson } from "../../src/triton_sam/service/static/js/import/geojson.js";
import { pngTexts } from "../../src/triton_sam/service/static/js/import/png_reader.js";

const { coco, geojson, png } = JSON.parse(await text(process.stdin));
if (!isCoco(coco) || !isGeoJson(geojson)) throw new Error("the page does not know these files");

const { images, classNames } = readCoco(coco);
const fromCoco = images.flatMap(({ fileName, width, height, annotations }) =>
  annotations.map((annotation) => {
    const { className, mask } = objectOf(annotation, classNames, { width, height });
    return [fileName, className, toCocoRle(mask)];
  }),
);

const { imageName, features } = readGeoJson(geojson);
const size = coco.images[0];
const fromGeoJson = features.map((feature) => {
  const { className, mask } = objectOfFeature(feature, size);
  return [className, toCocoRle(mask)];
});
const isLabels = LABELS in pngTexts(new Uint8Array(Buffer.from(png, "base64")));
process.stdout.write(JSON.stringify({ coco: fromCoco, geojson: [imageName, fromGeoJson], isLabels }));
