/** Which rows of a long list are on the screen: only those are in the page. */

/**
 * @param {object} list
 * @param {number} list.count of all rows
 * @param {number} list.length of a row along the list, CSS pixels
 * @param {number} list.scrolled CSS pixels before the visible part
 * @param {number} list.visible CSS pixels that are visible
 * @param {number} [list.spare] rows before and after, so that fast scrolling does not show gaps
 * @returns {{first: number, past: number}} rows first to past - 1
 */
export function rowsInView({ count, length, scrolled, visible, spare = 4 }) {
  const first = Math.max(0, Math.floor(scrolled / length) - spare);
  const past = Math.min(count, Math.ceil((scrolled + visible) / length) + spare);
  return { first: Math.min(first, past), past };
}

/** @returns {number} where to scroll, so that a row is wholly visible, and no further than needed */
export function scrolledTo(place, { length, scrolled, visible }) {
  if (place * length < scrolled) return place * length;
  return Math.max(scrolled, (place + 1) * length - visible);
}
