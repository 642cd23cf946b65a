/** One ZIP of many images, made image by image; in a worker if there is one. */
import { PROJECT_JSON, projectJson, storedDocument } from "../project/file_format.js";
import { categoriesOf } from "./categories.js";
import { cocoDocument } from "./coco.js";
import { mergedCoco } from "./coco_merging.js";
import { geoJson } from "./geojson.js";
import { classImage, labelImage } from "./label_image.js";
import { zip } from "./zip.js";

const json = (document, type = "application/json") => new Blob([JSON.stringify(document)], { type });

export class Archive {
  constructor() {
    this._entries = [];
    this._coco = [];
    this._project = [];
    this._others = [];
  }

  /** Label image, class image if there are classes, GeoJSON, and the part of the COCO document of one image. */
  async annotations({ picture, objects, classes, stem }) {
    this._coco.push(cocoDocument(picture, objects, classes));
    this.file({ name: `labels/${stem}.png`, blob: await labelImage(picture, objects) });
    if (classes.length) this.file({ name: `classes/${stem}.png`, blob: await this._classImage(picture, objects, classes) });
    this.file({ name: `geojson/${stem}.geojson`, blob: json(geoJson(picture, objects), "application/geo+json") });
  }

  /** Categories that are no class have one number in all images, that of the COCO document. */
  _classImage(picture, objects, classes) {
    const known = [...classes, ...this._others];
    const others = categoriesOf(known, objects).slice(classes.length);
    this._others = others.map(({ id, name }) => ({ id: `class-${id}`, name }));
    return classImage(picture, objects, known);
  }

  /** The part of the project file of one image. */
  work({ entry, document }) {
    this._project.push(json({ ...entry, document: storedDocument(document) }));
  }

  /** A file as it is. */
  file({ name, blob }) {
    this._entries.push({ name, blob });
  }

  /** @returns {Promise<{blob: Blob}>} the ZIP */
  async finish({ settings }) {
    const coco = this._coco.length ? [{ name: "coco.json", blob: json(mergedCoco(this._coco)) }] : [];
    return { blob: await zip([...coco, { name: PROJECT_JSON, blob: this._projectFile(settings) }, ...this._entries]) };
  }

  /** From parts: a string for all images may be longer than a string can be. */
  _projectFile(settings) {
    const [head, tail] = JSON.stringify(projectJson(settings, ["|"])).split('"|"');
    return new Blob([head, ...this._project.flatMap((part, index) => (index ? [",\n", part] : [part])), tail]);
  }
}
