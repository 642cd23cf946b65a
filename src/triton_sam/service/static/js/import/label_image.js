/**
 * Label images -> objects: each value but 0 is one.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {import("./coco.js").ImportedObject} ImportedObject
 */
import { RunWriter } from "../core/mask.js";
import { LABELS } from "../core/label_keyword.js";

/**
 * @param {ArrayLike<number>} values [H,W], row by row
 * @param {number} width @param {number} height original pixels
 * @param {() => Promise<void>|null} [pause] of slices()
 * @returns {Promise<Array<{value: number, mask: Mask}>>} by rising value; the masks exactly as in the image
 */
export async function masksOfLabels(values, width, height, pause = () => null) {
  /** Value -> starts and ends of its runs, column by column. @type {Map<number, number[]>} */
  const runs = new Map();
  for (let x = 0; x < width; x += 1) {
    for (let y = 0, at = x; y < height; ) {
      const value = values[at];
      const start = y;
      while (y < height && values[at] === value) {
        y += 1;
        at += width;
      }
      if (value !== 0) addRun(runs, value, x * height + start, x * height + y);
    }
    await pause();
  }
  const found = [];
  for (const [value, ends] of [...runs].sort(([a], [b]) => a - b)) {
    found.push({ value, mask: maskOfEnds(ends, width, height) });
    await pause();
  }
  return found;
}

function addRun(runs, value, start, end) {
  const own = runs.get(value);
  if (!own) runs.set(value, [start, end]);
  else if (own[own.length - 1] === start) own[own.length - 1] = end;
  else own.push(start, end);
}

function maskOfEnds(ends, width, height) {
  const writer = new RunWriter(ends.length + 2);
  let done = 0;
  ends.forEach((end, index) => {
    writer.add((index & 1) === 1, end - done);
    done = end;
  });
  writer.add(false, width * height - done);
  return writer.toMask(width, height);
}

/**
 * What the values mean, as this page writes it into a PNG.
 * @param {Record<string, string>} texts of the PNG
 * @returns {Record<string, {name?: string, class?: string|null}>} by value; empty if nothing is said
 */
export function meaningOf(texts) {
  try {
    const meaning = JSON.parse(texts[LABELS] ?? "{}");
    return meaning && typeof meaning === "object" ? meaning : {};
  } catch {
    return {};
  }
}

/** @returns {ImportedObject} */
export function objectOfLabel({ value, mask }, meaning) {
  const { name, class: className } = meaning[value] ?? {};
  return {
    className: typeof className === "string" && className ? className : null,
    mask,
    ...(typeof name === "string" && name ? { name } : {}),
  };
}
