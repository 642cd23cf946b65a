/**
 * The categories of an export: COCO's, and the values of a label image of classes.
 *
 * @typedef {import("../core/classes.js").Class} Class
 */
import { numberOf } from "../core/classes.js";

/** The category of an exported object: without one of its own its name is it. */
export const categoryOf = ({ category, name }) => category ?? name;

/**
 * @param {Class[]} classes all of them are categories, in their order, used or not, with the number that each keeps
 * @param {Iterable<{name: string, category?: string}>} objects a category that is no class follows in order of appearance
 * @returns {Array<{id: number, name: string}>}
 */
export function categoriesOf(classes, objects) {
  const rows = classes.map((one) => ({ id: numberOf(one), name: one.name }));
  const names = new Set(rows.map(({ name }) => name));
  let last = Math.max(0, ...rows.map(({ id }) => id));
  for (const object of objects) {
    const name = categoryOf(object);
    if (names.has(name)) continue;
    names.add(name);
    rows.push({ id: (last += 1), name });
  }
  return rows;
}
