/**
 * Objects as a COCO document.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {{name: string, width: number, height: number}} Picture Original pixels.
 * @typedef {{name: string, category?: string, mask: Mask, clean?: number, score?: number | null}} ExportedObject
 *   Without a category of its own an object's name is one.
 * @typedef {import("../core/classes.js").Class} Class
 */

import { area, bounds, toCocoRle } from "../core/mask.js";
import { categoriesOf, categoryOf } from "./categories.js";

/**
 * @param {Picture} picture
 * @param {ExportedObject[]} objects
 * @param {Class[]} [classes]
 * @returns {object} For JSON: of one image.
 */
export const cocoDocument = (picture, objects, classes = []) => cocoOfImages([{ picture, objects }], classes);

/**
 * @param {Array<{picture: Picture, objects: ExportedObject[]}>} images
 * @param {Class[]} [classes]
 * @returns {object} For JSON: info, the images, an annotation an object, and the categories of {@link categoriesOf}.
 */
export function cocoOfImages(images, classes = []) {
  const categories = categoriesOf(classes, images.flatMap(({ objects }) => objects));
  const ids = new Map(categories.map(({ id, name }) => [name, id]));
  const pairs = images.flatMap(({ objects }, index) => objects.map((object) => ({ object, imageId: index + 1 })));
  return {
    info: { description: "Segmented with triton-sam", ...cleaningOf(pairs) },
    images: images.map(({ picture: { name, width, height } }, index) => ({ id: index + 1, file_name: name, width, height })),
    annotations: pairs.map(({ object, imageId }, index) => annotation(object, index + 1, imageId, ids.get(categoryOf(object)))),
    categories: categories.map(({ id, name }) => ({ id, name, supercategory: "object" })),
  };
}

/** Told in the form of the server's prompt_json. */
function cleaningOf(pairs) {
  const size = pairs.reduce((most, { object }) => Math.max(most, object.clean ?? 0), 0);
  return size > 0 ? { clean: { holes: size, islands: size } } : {};
}

function annotation({ mask, score }, id, imageId, categoryId) {
  const box = bounds(mask) ?? { x: 0, y: 0, width: 0, height: 0 };
  return {
    id,
    image_id: imageId,
    category_id: categoryId,
    segmentation: toCocoRle(mask),
    area: area(mask),
    bbox: [box.x, box.y, box.width, box.height],
    // COCO's own files use RLE for crowds only, but readers detect the format of the segmentation; a crowd
    // would be excluded from training and ignored in evaluation, and these are single objects.
    iscrowd: 0,
    ...(score == null ? {} : { score }),
  };
}
