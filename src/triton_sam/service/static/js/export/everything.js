/** One ZIP of all images of the list: as annotations for other programs, and as a project file for this page. */
import { isUnseen, maskOf } from "../core/document.js";
import { safeFileName, stemOfName, uniqueNames } from "../core/file_names.js";
import { PROJECT_SETTINGS, withoutBlobs } from "../project/file_format.js";
import { Archive } from "./archive.js";
import { objectsOf } from "./objects.js";

/** Milliseconds. */
const LONGEST_STEP = 20;

/** The worker with the archive. If it cannot be loaded, because the server is away, the archive is made here. */
class Writer {
  constructor() {
    this._count = 0;
    this._waiting = new Map();
    this._local = null;
    this._worker = new Worker(new URL("./everything_worker.js", import.meta.url), { type: "module" });
    this._worker.onmessage = ({ data: { id, error, ...answer } }) => {
      const { resolve, reject } = this._waiting.get(id);
      this._waiting.delete(id);
      if (error) reject(new Error(error));
      else resolve(answer);
    };
    this._loaded = new Promise((resolve, reject) => this._waiting.set(0, { resolve, reject }));
    this._loaded.catch(() => {}); // handled where it is awaited
    this._worker.onerror = (event) => {
      event.preventDefault();
      for (const { reject } of this._waiting.values()) reject(new Error("Try again."));
    };
  }

  async ask(kind, given) {
    if (!this._local) await this._loaded.catch(() => (this._local = new Archive()));
    if (this._local) return this._local[kind](given);
    const id = ++this._count;
    return new Promise((resolve, reject) => {
      this._waiting.set(id, { resolve, reject });
      this._worker.postMessage({ id, kind, ...given });
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
 * @returns {Promise<{blob: Blob, unreadable: string[], unseen: Array<{name: string, count: number}>}>} the ZIP, the names of
 *   images that cannot be read, and how many objects of which images have no mask yet
 */
export async function everything(app, { annotations, images }, onProgress) {
  const writer = new Writer();
  const items = [...app.items];
  const stems = uniqueNames(items.map(({ name }) => safeFileName(stemOfName(name), "image")));
  const unreadable = [];
  const unseen = [];
  try {
    for (const [index, item] of items.entries()) {
      const work = await app.project.read(item.record);
      if (work) await writeImage(writer, app, item, work, stems[index], { annotations, images });
      else unreadable.push(item.name);
      const count = work?.history.present.things.filter(isUnseen).length ?? 0;
      if (count) unseen.push({ name: item.name, count });
      onProgress(index + 1, items.length);
    }
    const { blob } = await writer.ask("finish", { settings: await projectSettings(app) });
    return { blob, unreadable, unseen };
  } finally {
    writer.close();
  }
}

async function writeImage(writer, app, item, { file, view, history }, stem, { annotations, images }) {
  const { name, isDone } = item;
  const document = history.present;
  const size = await sizeOf(app, item, document, file);
  if (annotations) {
    const classes = app.classes.list;
    await prepareMasks(document);
    await writer.ask("annotations", { picture: { name, ...size }, objects: objectsOf(document, classes), classes, stem });
  }
  const files = [];
  const keep = (blob, path) => {
    files.push({ name: path, blob });
    return path;
  };
  const ending = view ? ".png" : (/\.[a-z0-9]{1,5}$/i.exec(name)?.[0] ?? ""); // a scientific image was drawn as PNG
  const kept = { file: null, view: null };
  if (images) {
    kept.file = keep(file, `images/${stem}${ending}`);
    kept.view = withoutBlobs(view, (blob) => keep(blob, `sources/${stem}-${files.length}`));
  }
  await writer.ask("work", { entry: { name, ...size, isDone, type: file.type, ...kept }, document });
  for (const given of files) await writer.ask("file", given);
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
  const settings = { classes: app.classes.value };
  for (const name of PROJECT_SETTINGS) settings[name] = await app.readSetting(name);
  return settings;
}
