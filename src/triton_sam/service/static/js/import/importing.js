/**
 * Annotations from files: found by their content, matched to images of the list by name, and added as objects, one undo
 * step an image. Boxes get their masks when the image is opened, so that a file with thousands does not flood the server.
 *
 * @typedef {import("../app.js").App} App
 * @typedef {import("./coco.js").ImportedObject} ImportedObject
 */
import { readClassList } from "../core/classes.js";
import { addImported } from "../core/document.js";
import { NameMatcher } from "../core/name_matching.js";
import { slices } from "../core/slices.js";
import { Problem } from "../net/problems.js";
import { isCoco, objectOf, readCoco } from "./coco.js";
import { isGeoJson, objectOfFeature, readGeoJson } from "./geojson.js";
import { masksOfLabels, meaningOf, objectOfLabel } from "./label_image.js";
import { readLabels } from "./label_files.js";
import { Outcome } from "./outcome.js";

const PROGRESS_MS = 2000;

const refuse = (text) => {
  throw new Problem("refused", text);
};

/** A JSON file of annotations or classes. @param {App} app @param {File} file */
export async function importJson(app, file) {
  let document;
  try {
    document = JSON.parse(await file.text());
  } catch {
    refuse(`${file.name} is not valid JSON: export it again.`);
  }
  if (isCoco(document)) await importCoco(app, document, file.name);
  else if (isGeoJson(document)) await importGeoJson(app, document, file.name);
  else if (Array.isArray(document) && document[0]?.image_id !== undefined) {
    refuse(`${file.name} has COCO results, which do not name their images: import the file with images and annotations.`);
  } else if (Array.isArray(document) || document?.categories || document?.classes) importClasses(app, JSON.stringify(document), file.name);
  else refuse(`${file.name} is neither COCO nor GeoJSON nor a list of classes.`);
}

/** A text with a class per line. @param {App} app @param {File} file */
export async function importText(app, file) {
  importClasses(app, await file.text(), file.name);
}

/** @param {App} app @param {string} text @param {string} fileName */
export function importClasses(app, text, fileName) {
  const before = app.classes.list.length;
  try {
    app.classes.merge(readClassList(text));
  } catch (error) {
    refuse(`${fileName}: ${error.message}`);
  }
  const added = app.classes.list.length - before;
  app.notice("import", `${added === 1 ? "1 class was" : `${added} classes were`} added.`);
}

async function importCoco(app, document, fileName) {
  const { classes, images, classNames } = readCoco(document);
  if (!images.length) refuse(`${fileName} has no annotations of images.`);
  const matcher = new NameMatcher(app.items);
  const outcome = new Outcome(images.length);
  const known = app.classes.merge(classes);
  const pause = slices();
  const progress = progressOf(app, images.length);
  for (const [index, image] of images.entries()) {
    progress(index);
    const item = matcher.image(image.fileName);
    if (!item) outcome.missing.push(image.fileName);
    else if (!item.width) outcome.unknownSizes.push(item.name);
    else if (isOtherSize(item, image)) outcome.otherSizes.push(item.name);
    else await add(app, item, await collect(image.annotations, (one) => objectOf(one, classNames, item), outcome, pause), known, outcome);
    await pause();
  }
  outcome.finish(app, fileName);
}

/** Long imports tell how far they are; not often, because screen readers read it. */
function progressOf(app, total) {
  let told = performance.now();
  return (done) => {
    if (performance.now() - told < PROGRESS_MS) return;
    told = performance.now();
    app.notice("import", `Importing annotations: ${done.toLocaleString("en")} of ${total.toLocaleString("en")} images.`);
  };
}

const isOtherSize = (item, { width, height }) =>
  width !== null && height !== null && (width !== item.width || height !== item.height);

async function importGeoJson(app, document, fileName) {
  const { imageName, classes, features } = readGeoJson(document);
  const item = itemFor(app, imageName, fileName);
  const outcome = new Outcome(1);
  const known = app.classes.merge(classes);
  const objects = await collect(features, (feature) => objectOfFeature(feature, item), outcome, slices());
  if (!objects.length) refuse(`${fileName} has no polygon within ${item.name}: coordinates are pixels of the image.`);
  await add(app, item, objects, known, outcome);
  outcome.finish(app, fileName);
}

/** A label image, PNG or TIFF. @param {App} app @param {File} file */
export async function importLabels(app, file) {
  const item = itemFor(app, null, file.name);
  const pause = slices();
  const { width, height, values, texts } = await readLabels(app, file, pause);
  if (width !== item.width || height !== item.height) {
    refuse(`${file.name} has ${width} x ${height} pixels and ${item.name} ${item.width} x ${item.height}: a label image has the size of its image.`);
  }
  const meaning = meaningOf(texts);
  const objects = (await masksOfLabels(values, width, height, pause)).map((one) => objectOfLabel(one, meaning));
  if (!objects.length) refuse(`${file.name} has no labels: all its values are 0.`);
  const outcome = new Outcome(1);
  const names = [...new Set(objects.map(({ className }) => className).filter(Boolean))];
  await add(app, item, objects, app.classes.merge(names.map((name) => ({ name }))), outcome);
  outcome.finish(app, file.name);
}

/** The image that a file of one image belongs to: by the name in it, by its own name, or the open one. */
function itemFor(app, imageName, fileName) {
  const matcher = new NameMatcher(app.items);
  const open = app.items.find(({ record }) => record === app.project.list.current);
  const item = (imageName && matcher.image(imageName)) || matcher.companion(fileName) || open;
  if (!item) refuse(`${fileName} belongs to no image of the list: open its image first.`);
  if (!item.width) refuse(`The size of ${item.name} is not known yet: open it once, and import ${fileName} again.`);
  return item;
}

/** @returns {Promise<ImportedObject[]>} what can be read; the rest is counted */
async function collect(rows, read, outcome, pause) {
  const objects = [];
  for (const row of rows) {
    try {
      const object = read(row);
      if (object) objects.push(object);
      else outcome.unusable += 1;
    } catch (error) {
      outcome.broken(error);
    }
    await pause();
  }
  return objects;
}

async function add(app, item, objects, known, outcome) {
  const things = objects.map(({ className, ...object }) => {
    const one = known.get(className);
    return { ...object, classId: one?.id ?? null, ...(one && { colour: one.colour }) };
  });
  const isAdded = await app.editDocument(item.record, (document) => addImported(document, things));
  if (isAdded) outcome.count(objects);
  else outcome.missing.push(item.name);
}
