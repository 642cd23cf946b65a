/**
 * Objects as a COCO document.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {{name: string, width: number, height: number}} Picture Original pixels.
 */

import { area, bounds, toCocoRle } from "../core/mask.js";

/**
 * @param {Picture} picture
 * @param {Array<{name: string, category?: string, mask: Mask, score?: number | null}>} objects Without a category
 *   of its own an object's name is one.
 * @returns {object} For JSON: info, one image, an annotation an object and the categories in order of appearance.
 */
export function cocoDocument(picture, objects) {
  const categoryOf = ({ category, name }) => category ?? name;
  const names = [...new Set(objects.map(categoryOf))];
  const categoryIds = new Map(names.map((name, index) => [name, index + 1]));
  return {
    info: { description: "Segmented with triton-sam" },
    images: [{ id: 1, file_name: picture.name, width: picture.width, height: picture.height }],
    annotations: objects.map((object, index) => annotation(object, index + 1, categoryIds.get(categoryOf(object)))),
    categories: names.map((name) => ({ id: categoryIds.get(name), name, supercategory: "object" })),
  };
}

function annotation({ mask, score }, id, categoryId) {
  const box = bounds(mask) ?? { x: 0, y: 0, width: 0, height: 0 };
  return {
    id,
    image_id: 1,
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
