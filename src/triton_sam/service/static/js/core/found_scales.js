/**
 * The sliders of what was found: positions from 0 (all) to {@link STEPS} (only the best, or the largest), spread over the
 * values that there are. Sizes grow by factors, because most objects are small.
 *
 * @typedef {{least: number, most: number}} Extent
 */
import { areaOf, isUntouched } from "./found.js";

export const STEPS = 100;
const ROUNDED = 1000;

/**
 * @param {import("./document.js").Document} document
 * @returns {{score: Extent, size: Extent}|null} null if nothing was found
 */
export function extents({ things }) {
  const found = things.filter(isUntouched);
  if (!found.length) return null;
  return { score: extent(found.map((thing) => thing.found.score)), size: extent(found.map(({ base }) => areaOf(base))) };
}

const extent = (values) => ({
  least: values.reduce((least, value) => Math.min(least, value)),
  most: values.reduce((most, value) => Math.max(most, value)),
});

/** @param {Extent} extent @param {number} position @returns {number} the least score; 0: all */
export function scoreAt({ least, most }, position) {
  if (position <= 0) return 0;
  const score = least + ((most - least) * position) / STEPS;
  return Math.floor(score * ROUNDED) / ROUNDED; // rounded up, the last position would hide all
}

/** @param {Extent} extent @param {number} position @returns {number} the least size, whole original pixels; 0: all */
export function sizeAt({ least, most }, position) {
  if (position <= 0) return 0;
  const from = Math.max(1, least);
  return Math.floor(from * (Math.max(1, most) / from) ** (position / STEPS) + 1e-6);
}

/** @param {Extent} extent @param {number} score @returns {number} the position nearest to it */
export const positionOfScore = ({ least, most }, score) => placed(score === 0 ? 0 : (score - least) / (most - least));

/** @param {Extent} extent @param {number} size @returns {number} the position nearest to it */
export function positionOfSize({ least, most }, size) {
  const from = Math.max(1, least);
  return placed(size === 0 ? 0 : Math.log(size / from) / Math.log(Math.max(1, most) / from));
}

const placed = (share) => (Number.isFinite(share) ? Math.min(STEPS, Math.max(0, Math.round(share * STEPS))) : 0);
