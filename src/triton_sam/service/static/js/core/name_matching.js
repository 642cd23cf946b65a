/** Which image of the list a name in a file means. */
import { stemOfName } from "./file_names.js";

const baseOf = (name) => name.slice(name.lastIndexOf("/") + 1);
const stemOf = (name) => stemOfName(baseOf(name));
const cleanPath = (name) => String(name).normalize("NFC").replaceAll("\\", "/").replace(/^(\.?\/)+/, "").toLowerCase();
/** What programs and this page append to an image's name for its annotations. */
const ENDINGS = /[-_. ](labels?|masks?|cp_masks|seg|segmentation|instances|classes|coco|polygons|annotations?)$/;

/** @template {{name: string}} Item */
export class NameMatcher {
  /** @param {Item[]} items images, their names with or without folders */
  constructor(items) {
    this._byPath = grouped(items, cleanPath);
    this._byBase = grouped(items, (name) => baseOf(cleanPath(name)));
    this._byStem = grouped(items, (name) => stemOf(cleanPath(name)));
  }

  /**
   * @param {string} fileName with or without folders
   * @returns {Item|null} null if there is none, or if it could be several
   */
  image(fileName) {
    const path = cleanPath(fileName);
    const exact = this._byPath.get(path) ?? [];
    if (exact.length) return exact.length === 1 ? exact[0] : null;
    return onlyNearest(this._byBase.get(baseOf(path)) ?? [], path);
  }

  /**
   * The image that an annotation's file belongs to: "a/cells_labels.png" is of "a/cells.tif".
   * @param {string} fileName
   * @returns {Item|null}
   */
  companion(fileName) {
    const stem = stemOf(cleanPath(fileName));
    for (const name of [stem, stem.replace(ENDINGS, "")]) {
      const found = this._byStem.get(name) ?? [];
      if (found.length) return onlyNearest(found, cleanPath(fileName));
    }
    return null;
  }
}

/** @returns {boolean} whether a file's name says that it holds labels */
export const isNamedAsLabels = (fileName) =>
  /[-_. ](labels?|masks?|cp_masks|seg|segmentation|instances|classes)$/.test(stemOf(cleanPath(fileName)));

function grouped(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item.name);
    if (groups.has(key)) groups.get(key).push(item);
    else groups.set(key, [item]);
  }
  return groups;
}

/** Of several, the one that shares most folders from the end on. */
function onlyNearest(items, path) {
  if (items.length < 2) return items[0] ?? null;
  const folders = path.split("/").slice(0, -1).reverse();
  const shared = items.map(({ name }) => {
    const own = cleanPath(name).split("/").slice(0, -1).reverse();
    const differs = folders.findIndex((folder, index) => folder !== own[index]);
    return differs < 0 ? folders.length : differs;
  });
  const most = Math.max(...shared);
  const nearest = items.filter((_, index) => shared[index] === most);
  return nearest.length === 1 ? nearest[0] : null;
}
