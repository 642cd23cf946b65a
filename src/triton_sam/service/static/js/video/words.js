/** How the page speaks of a video's frames, or of a stack's slices. */

/** @param {"t"|"z"} axis */
export const wordOf = (axis) => (axis === "z" ? "slice" : "frame");

/** @param {number} count @param {string} word @returns {string} "1 frame", "280 frames" */
export const counted = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

/** @param {number} frame @param {number|null} fps @returns {string} "0:03.4"; empty without a rate */
export function timeOf(frame, fps) {
  if (!fps) return "";
  const tenths = Math.floor((10 * frame) / fps + 1e-6);
  const [minutes, rest] = [Math.floor(tenths / 600), tenths % 600];
  return `${minutes}:${(rest / 10).toFixed(1).padStart(4, "0")}`;
}

/** @param {[number, number][]} ranges inclusive @param {number} [most] so many are named @returns {string} "0–35, 41" */
export function rangesText(ranges, most = 6) {
  const named = ranges.slice(0, most).map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`));
  if (ranges.length > most) named.push("…");
  return named.join(", ");
}
