/** Where tracking begins, and how many frames it will pass. */

/**
 * @param {import("./film.js").Film} film
 * @param {"forward"|"backward"|"both"} direction
 * @param {number} shown the frame that is looked at
 * @returns {number|null} a correction that is looked at, if all up to it was tracked; else the outermost prompt. null without prompts
 */
export function startOf({ prompts, tracks }, direction, shown) {
  const { frames } = prompts;
  if (!frames.length) return null;
  const outermost = direction === "backward" ? frames.at(-1) : frames[0];
  if (!frames.includes(shown)) return outermost;
  const [from, to] = [Math.min(outermost, shown), Math.max(outermost, shown)];
  for (let frame = from; frame <= to; frame += 1) if (!tracks.isKnown(frame)) return outermost;
  return shown;
}

/** @returns {number} frames with results at the end */
export function passes(direction, start, frames) {
  return { forward: frames - start, backward: start + 1, both: frames }[direction];
}
