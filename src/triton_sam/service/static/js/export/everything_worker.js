/**
 * Makes one ZIP of many images, off the main thread. Messages, each answered with {id} or {id, error}:
 *
 * - {kind: "annotations", picture, objects, classes, stem}: label image, GeoJSON, and the part of the COCO document of an image
 * - {kind: "work", entry, document}: the part of the project file of an image
 * - {kind: "file", name, blob}: a file as it is
 * - {kind: "finish", settings}: answered with {id, blob}, the ZIP
 */
import { PROJECT_JSON, projectJson, storedDocument } from "../project/file_format.js";
import { cocoDocument } from "./coco.js";
import { mergedCoco } from "./coco_merging.js";
import { geoJson } from "./geojson.js";
import { labelImage } from "./label_image.js";
import { zip } from "./zip.js";

const entries = [];
const cocoParts = [];
const projectParts = [];

const json = (document, type = "application/json") => new Blob([JSON.stringify(document)], { type });

const steps = {
  async annotations({ picture, objects, classes, stem }) {
    cocoParts.push(cocoDocument(picture, objects, classes));
    entries.push({ name: `labels/${stem}.png`, blob: await labelImage(picture, objects) });
    entries.push({ name: `geojson/${stem}.geojson`, blob: json(geoJson(picture, objects), "application/geo+json") });
  },
  work({ entry, document }) {
    projectParts.push(json({ ...entry, document: storedDocument(document) }));
  },
  file({ name, blob }) {
    entries.push({ name, blob });
  },
  async finish({ settings }) {
    entries.unshift({ name: PROJECT_JSON, blob: projectFile(settings) });
    const coco = cocoParts.length ? [{ name: "coco.json", blob: json(mergedCoco(cocoParts)) }] : [];
    return { blob: await zip([...coco, ...entries]) };
  },
};

/** From parts: a string for all images may be longer than a string can be. */
function projectFile(settings) {
  const [head, tail] = JSON.stringify(projectJson(settings, ["|"])).split('"|"');
  return new Blob([head, ...projectParts.flatMap((part, index) => (index ? [",\n", part] : [part])), tail]);
}

let turn = Promise.resolve();

onmessage = ({ data: { id, kind, ...given } }) => {
  turn = turn.then(async () => {
    try {
      postMessage({ id, ...(await steps[kind](given)) });
    } catch (error) {
      postMessage({ id, error: error.message });
    }
  });
};
