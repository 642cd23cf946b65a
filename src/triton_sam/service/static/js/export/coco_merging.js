/** COCO documents of single images as one: made image by image, so that the masks of all images are never in memory at once. */

/**
 * @param {object[]} documents of cocoDocument, with the same classes
 * @returns {object} ids count through all images; categories of the same name are one
 */
export function mergedCoco(documents) {
  const merged = { info: Object.assign({}, ...documents.map(({ info }) => info)), images: [], annotations: [], categories: [] };
  const ids = new Map();
  let last = 0;
  for (const { images, annotations, categories } of documents) {
    const own = new Map();
    for (const category of categories) {
      if (!ids.has(category.name)) {
        // The first document's own numbers are those of the classes, which all documents share.
        const isFree = ![...ids.values()].includes(category.id);
        ids.set(category.name, isFree ? category.id : last + 1);
        last = Math.max(last, ids.get(category.name));
        merged.categories.push({ ...category, id: ids.get(category.name) });
      }
      own.set(category.id, ids.get(category.name));
    }
    const imageId = merged.images.length + 1;
    merged.images.push({ ...images[0], id: imageId });
    for (const annotation of annotations) {
      const id = merged.annotations.length + 1;
      merged.annotations.push({ ...annotation, id, image_id: imageId, category_id: own.get(annotation.category_id) });
    }
  }
  return merged;
}
