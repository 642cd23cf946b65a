/**
 * An object's lane: what is drawn of its frames, and the same in words.
 *
 * @typedef {import("./tracks.js").Span} Span
 * @typedef {{from: number, to: number, kind: "present"|"absent"|"stale"}} Part  in units of the lane's width
 */
import { rangesOf } from "./tracks.js";
import { rangesText } from "./words.js";

/** Marks nearer to each other than this share of the lane are one. */
const NEAR = 1 / 400;

/**
 * @param {Span[]} spans @param {number} frames of the video @param {number} width of the lane: no part is finer than 1
 * @returns {Part[]} in order; where nothing is known there is none
 */
export function laneParts(spans, frames, width) {
  const parts = [];
  for (const { first, last, state, isStale } of spans) {
    if (state === "unknown") continue;
    const kind = state === "absent" ? "absent" : isStale ? "stale" : "present";
    const [from, to] = [(first * width) / frames, ((last + 1) * width) / frames];
    const before = parts.at(-1);
    // Thousands of frames in turns of one: what is finer than a unit is drawn as what was there before.
    if (before && to - before.to < 1 && before.to === from) before.to = to;
    else parts.push({ from, to, kind });
  }
  return parts;
}

/** @param {number[]} prompted frames, in order @param {number} frames @returns {number[]} places of marks, 0 to 1 */
export function laneMarks(prompted, frames) {
  const places = prompted.map((frame) => (frame + 0.5) / frames);
  return places.filter((at, index) => index === 0 || at - places[index - 1] >= NEAR);
}

/** @returns {string} for screen readers: "Object 1: present in frames 0–35, lost in 36–40, not tracked in 41–79" */
export function laneText(id, spans, prompted, word) {
  const parts = [
    ["present in", rangesOf(spans, ({ state }) => state === "present")],
    ["lost in", rangesOf(spans, ({ state }) => state === "absent")],
    ["not tracked in", rangesOf(spans, ({ state }) => state === "unknown")],
    ["older than a correction in", rangesOf(spans, ({ isStale }) => isStale)],
    ["prompts in", prompted.map((frame) => [frame, frame])],
  ];
  const told = parts.filter(([, ranges]) => ranges.length).map(([what, ranges]) => `${what} ${word}s ${rangesText(ranges)}`);
  return `Object ${id}: ${told.join(", ")}`;
}
