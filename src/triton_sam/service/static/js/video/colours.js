/** The colour of an object: the one that it has in exported videos and label images. */

/** Of the golden ratio around the circle of hues: neighbouring numbers differ most. */
const HUE_STEP = 0.61803398875;
const SATURATION = 0.75;

/** @param {number} object from 1 on @returns {[number, number, number]} red, green, blue, 0 to 255 */
export function colourOf(object) {
  const hue = ((object - 1) * HUE_STEP) % 1;
  const channel = (offset) => {
    const distance = (offset + hue * 6) % 6;
    return Math.round(255 * (1 - SATURATION * Math.max(0, Math.min(distance, 4 - distance, 1))));
  };
  return [channel(5), channel(3), channel(1)];
}

/** @param {number} object @returns {string} "#rrggbb" */
export const hexOf = (object) => `#${colourOf(object).map((part) => part.toString(16).padStart(2, "0")).join("")}`;
