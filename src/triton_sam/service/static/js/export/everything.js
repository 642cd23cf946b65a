/** One ZIP of all images of the list: as annotations for other programs, and as a project file for this page. */
import { maskOf } from "../core/document.js";
import { safeFileName, uniqueNames } from "../core/file_names.js";
import { withoutBlobs } from "../project/file_format.js";
import { objectsOf } from "./objects.js";

/** The settings that belong to the work, and not to this browser. */
export const PROJECT_SETTINGS = ["classes", "clean"];

/** Milliseconds. */
const LONGEST_STEP = 20;

/** The worker that makes the ZIP; see everything_worker.js. */
class Writer {
  constructor() {
    this._worker = new Worker(new URL("./everything_worker.js", import.meta.url), { type: "module" });
    this._count = 0;
    this._waiting = new Map();
    this._worker.onmessage = ({ data: { id, error, ...answer } }) => {
      const { resolve, reject } = this._waiting.get(id);
      this._waiting.delete(id);
      if (error) reject(new Error(error));
      else resolve(answer);
    };
    this._worker.onerror = ({ message }) => {
      for (const { reject } of this._waiting.values()) reject(new Error(message || "The export cannot be made here."));
    };
  }

  ask(message) {
    const id = ++this._count;
    return new Promise((resolve, reject) => {
      this._waiting.set(id, { resolve, reject });
      this._worker.postMessage({ id, ...message });
    });
  }

  close() {
    this._worker.terminate();
  }
}

/**
 * @param {import("../app.js").App} app
 * @param {object} wanted
 * @param {boolean} wanted.annotations COCO of all images; label image and GeoJSON of each
 * @param {boolean} wanted.images the image files, for the project file
 * @param {(done: number, total: number) => void} onProgress
 * @returns {Promise<{blob: Blob, unreadable: string[]}>} the ZIP, and the names of images that cannot be read
 */
export async function everything(app, { annotations, images }, onProgress) {
  const writer = new Writer();
  const items = [...app.items];
  const stems = uniqueNames(items.map(({ name }) => safeFileName(name.replace(/\.[^./]*$/, ""), "image")));
  const unreadable = [];
  try {
    for (const [index, item] of items.entries()) {
      const work = await app.project.read(item.record);
      if (work) await writeImage(writer, app, item, work, stems[index], { annotations, images });
      else unreadable.push(item.name);
      onProgress(index + 1, items.length);
    }
    const { blob } = await writer.ask({ kind: "finish", settings: await projectSettings(app) });
    return { blob, unreadable };
  } finally {
    writer.close();
  }
}

async function writeImage(writer, app, item, { file, view, history }, stem, { annotations, images }) {
  const { name, isDone } = item;
  const document = history.present;
  const size = await sizeOf(app, item, document, file);
  if (annotations) {
    const classes = app.classes?.list ?? [];
    await prepareMasks(document);
    await writer.ask({ kind: "annotations", picture: { name, ...size }, objects: objectsOf(document, classes), classes, stem });
  }
  const files = [];
  const keep = (blob, path) => {
    files.push({ kind: "file", name: path, blob });
    return path;
  };
  const ending = /\.[a-z0-9]{1,5}$/i.exec(name)?.[0] ?? "";
  const kept = { file: null, view: null };
  if (images) {
    kept.file = keep(file, `images/${stem}${ending}`);
    kept.view = withoutBlobs(view, (blob) => keep(blob, `sources/${stem}-${files.length}`));
  }
  await writer.ask({ kind: "work", entry: { name, ...size, isDone, type: file.type, ...kept }, document });
  for (const message of files) await writer.ask(message);
}

/** The masks of many objects take a while: the page stays responsive meanwhile, and they are at hand afterwards. */
async function prepareMasks({ things }) {
  let since = performance.now();
  for (const thing of things) {
    maskOf(thing);
    if (performance.now() - since < LONGEST_STEP) continue;
    await new Promise((resolve) => setTimeout(resolve));
    since = performance.now();
  }
}

/** Images of older versions have no known size until they are opened. */
async function sizeOf(app, { width, height }, document, file) {
  if (width) return { width, height };
  const mask = document.things.flatMap(({ added, answer }) => [added, answer?.candidates[0]?.mask]).find(Boolean);
  if (mask) return { width: mask.width, height: mask.height };
  const { bitmap } = await app.project.opening.read(file);
  const size = { width: bitmap.width, height: bitmap.height };
  bitmap.close();
  return size;
}

async function projectSettings(app) {
  const values = await Promise.all(PROJECT_SETTINGS.map((name) => app.readSetting(name)));
  return Object.fromEntries(PROJECT_SETTINGS.map((name, index) => [name, values[index]]).filter(([, value]) => value !== undefined));
}
