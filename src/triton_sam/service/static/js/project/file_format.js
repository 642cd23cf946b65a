/**
 * The project file: a ZIP with project.json, and with the images if they are wanted. It has the documents of all images
 * (objects, prompts, masks as COCO run lengths), their statuses, and the settings of the page, such as the classes. It does
 * not have the undo steps.
 *
 * @typedef {import("../core/document.js").Document} Document
 * @typedef {object} ImageEntry
 * @property {string} name
 * @property {number} width  original pixels; 0 if unknown
 * @property {number} height
 * @property {boolean} isDone
 * @property {string|null} file  name of the image in the ZIP
 * @property {string} type  MIME type of the image
 * @property {object|null} view  of a scientific image; blobs in it are names in the ZIP: {"file": "..."}
 * @property {object} document  with COCO run lengths as masks
 */
import { fromCocoRle, toCocoRle } from "../core/mask.js";
import { newHistory } from "../core/history.js";
import { packed, unpacked } from "../core/history_packing.js";
import { Problem } from "../net/problems.js";

const FORMAT = "triton-sam project";
const VERSION = 1;
export const PROJECT_JSON = "project.json";
/** The settings that belong to the work, and not to this browser; and the classes. */
export const PROJECT_SETTINGS = ["clean"];

/** @param {Document} document @returns {object} for JSON */
export const storedDocument = (document) => packed(newHistory(document), toCocoRle).present;

/** @param {object} stored of {@link storedDocument} @returns {Document} */
export const documentFrom = (stored) => unpacked(newHistory(stored), fromCocoRle).present;

/** @param {Record<string, any>} settings @param {ImageEntry[]} images @returns {object} for JSON */
export const projectJson = (settings, images) => ({ format: FORMAT, version: VERSION, settings, images });

/**
 * @param {string} text of project.json
 * @returns {{settings: Record<string, any>, images: ImageEntry[]}}
 * @throws {Problem} if it is not a project file of this version
 */
export function readProjectJson(text) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    throw new Problem("refused", "this project file is damaged: export it again");
  }
  if (document?.format !== FORMAT) throw new Problem("refused", "this is not a project file of this page");
  if (!(document.version <= VERSION)) {
    throw new Problem("refused", "this project file was written by a newer version of the page: update the server");
  }
  if (!Array.isArray(document.images)) throw new Problem("refused", "this project file is damaged: export it again");
  return { settings: document.settings ?? {}, images: document.images };
}

/**
 * Takes the blobs out of a value, such as the samples of a scientific image.
 * @param {object|null} view @param {(blob: Blob) => string} keep returns the blob's name in the ZIP
 */
export function withoutBlobs(view, keep) {
  if (view instanceof Blob) return { file: keep(view), type: view.type };
  return mappedValues(view, (value) => withoutBlobs(value, keep));
}

/** @param {object|null} view of {@link withoutBlobs} @param {(name: string, type: string) => Blob} find */
export function withBlobs(view, find) {
  if (typeof view?.file === "string" && Object.keys(view).every((name) => name === "file" || name === "type")) {
    return find(view.file, view.type);
  }
  return mappedValues(view, (value) => withBlobs(value, find));
}

function mappedValues(value, change) {
  if (Array.isArray(value)) return value.map(change);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, change(part)]));
}

/** @param {import("../core/document.js").Document} document @param {Map<string, string>} ids class here -> class there */
export function withClassIds(document, ids) {
  const renamed = (id) => (id ? (ids.get(id) ?? id) : id);
  const changed = ({ found, ...thing }) => ({
    ...thing,
    ...(thing.classId && { classId: renamed(thing.classId) }),
    ...(found && { found: { ...found, classId: renamed(found.classId) } }),
  });
  return { ...document, things: document.things.map((thing) => (thing.classId || thing.found?.classId ? changed(thing) : thing)) };
}
