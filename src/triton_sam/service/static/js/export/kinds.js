/** The files that are made of the open image. */
import { safeFileName, uniqueNames } from "../core/file_names.js";
import { cocoDocument } from "./coco.js";
import { geoJson } from "./geojson.js";
import { classImage, labelImage, maskImage } from "./label_image.js";
import { slide } from "./slide.js";
import { zip } from "./zip.js";

const json = (document, type) => new Blob([JSON.stringify(document)], { type });

/** Kind -> [suffix of the file name, function that creates the file]. */
export const KINDS = {
  masks: ["masks.zip", masksOf],
  labels: ["labels.png", ({ picture, objects }) => labelImage(picture, objects)],
  classes: ["classes.png", ({ picture, objects, classes }) => classImage(picture, objects, classes)],
  coco: ["coco.json", ({ picture, objects, classes }) => json(cocoDocument(picture, objects, classes), "application/json")],
  geojson: ["polygons.geojson", ({ picture, objects }) => json(geoJson(picture, objects), "application/geo+json")],
  slide: ["slide.png", ({ pixels, objects, look }) => slide(pixels, objects, look)],
};

async function masksOf({ objects, tell }) {
  const names = uniqueNames(objects.map(({ name }) => safeFileName(name, "object")));
  const files = [];
  for (const [index, { mask }] of objects.entries()) {
    files.push({ name: `${names[index]}.png`, blob: await maskImage(mask) });
    tell(`Making the file: ${index + 1} of ${objects.length} masks`);
    await new Promise((resolve) => setTimeout(resolve)); // streams alone would not let the page draw or react
  }
  return zip(files);
}
