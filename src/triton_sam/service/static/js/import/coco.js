/**
 * Reads COCO documents. An annotation with a segmentation is a mask, one with a box alone is a prompt.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {{name: string, colour?: string, number?: number}} NamedClass
 * @typedef {{name?: string, className: string|null, box?: number[], mask?: Mask}} ImportedObject
 *   box: x0, y0, x1, y1 in original pixels
 * @typedef {{fileName: string, width: number|null, height: number|null, annotations: object[]}} CocoImage
 */
import { rowOf } from "../core/classes.js";
import { RunWriter, area, fromCocoRle } from "../core/mask.js";
import { union } from "../core/mask_ops.js";
import { cocoPolygonMask } from "../core/polygon_fill.js";

/** @param {any} document @returns {boolean} */
export const isCoco = (document) => Array.isArray(document?.images) && Array.isArray(document?.annotations);

/**
 * @param {any} document of JSON
 * @returns {{classes: NamedClass[], images: CocoImage[], classNames: Map<any, string>}} images that have annotations
 */
export function readCoco(document) {
  const categories = Array.isArray(document.categories) ? document.categories : [];
  const classes = categories.map(rowOf).filter(({ name }) => typeof name === "string" && name.trim());
  const classNames = new Map(categories.map((category) => [category?.id, category?.name]));
  const annotations = new Map();
  for (const annotation of document.annotations) {
    const key = annotation?.image_id;
    if (annotations.has(key)) annotations.get(key).push(annotation);
    else annotations.set(key, [annotation]);
  }
  const sizeOf = (value) => (Number.isInteger(value) && value > 0 ? value : null);
  const images = document.images
    .filter((image) => image && annotations.has(image.id))
    .map((image) => ({
      fileName: String(image.file_name ?? ""),
      width: sizeOf(image.width),
      height: sizeOf(image.height),
      annotations: annotations.get(image.id),
    }));
  return { classes, images, classNames };
}

/**
 * @param {any} annotation
 * @param {Map<any, string>} classNames by the category's id
 * @param {{width: number, height: number}} size of the image, original pixels
 * @returns {ImportedObject|null} null if it has neither a mask nor a box within the image
 */
export function objectOf(annotation, classNames, size) {
  const name = annotation.name ?? annotation.attributes?.name;
  const described = {
    className: classNames.get(annotation.category_id) ?? null,
    ...(typeof name === "string" && name.trim() ? { name: name.trim() } : {}),
  };
  const mask = maskOfSegmentation(annotation.segmentation, size);
  if (mask) return area(mask) > 0 ? { ...described, mask } : null;
  const box = boxOf(annotation.bbox, size);
  return box && { ...described, box };
}

/**
 * @param {any} segmentation polygons, or run lengths (compressed or not)
 * @param {{width: number, height: number}} size
 * @returns {Mask|null} null if there is none; the same pixels as pycocotools' annToMask
 * @throws {Error} one sentence, if the run lengths are of another size or broken
 */
export function maskOfSegmentation(segmentation, { width, height }) {
  if (Array.isArray(segmentation)) {
    const isFlat = segmentation.length > 0 && typeof segmentation[0] === "number";
    const polygons = (isFlat ? [segmentation] : segmentation).filter(isPolygon);
    return polygons.map((xy) => cocoPolygonMask(xy, width, height)).reduce((all, one) => (all ? union(all, one) : one), null);
  }
  if (!segmentation || typeof segmentation !== "object") return null;
  const [rows, columns] = segmentation.size ?? [];
  if (rows !== height || columns !== width) {
    throw new Error(`the mask has ${columns} x ${rows} pixels and the image ${width} x ${height}`);
  }
  return Array.isArray(segmentation.counts) ? fromCounts(segmentation.counts, width, height) : fromCocoRle(segmentation);
}

const isPolygon = (xy) => Array.isArray(xy) && xy.length >= 6 && xy.every(Number.isFinite);

/** COCO's run lengths as plain numbers. */
function fromCounts(counts, width, height) {
  const isWhole = counts.every((count) => Number.isInteger(count) && count >= 0);
  if (!isWhole || counts.reduce((sum, count) => sum + count, 0) !== width * height) {
    throw new Error("a mask's counts do not fill its pixels");
  }
  const writer = new RunWriter(counts.length + 1);
  counts.forEach((count, index) => writer.add((index & 1) === 1, count));
  return writer.toMask(width, height);
}

/** @returns {number[]|null} x0, y0, x1, y1 within the image */
function boxOf(bbox, { width, height }) {
  if (!Array.isArray(bbox) || bbox.length !== 4 || !bbox.every(Number.isFinite)) return null;
  const [x, y, w, h] = bbox;
  const within = (value, length) => Math.min(length, Math.max(0, value));
  const box = [within(x, width), within(y, height), within(x + w, width), within(y + h, height)];
  return box[2] > box[0] && box[3] > box[1] ? box : null;
}
