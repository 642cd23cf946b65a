/**
 * What is looked for, as the user says it, and as /v1/segment reads it.
 *
 * @typedef {{box: number[], label: 0|1, classId?: string|null}} Example  x0, y0, x1, y1 in original pixels; 1: like this, 0: not
 *   this; classId: of the object that it is
 */
import { Problem } from "../net/problems.js";

/** So low that the page's slider can show more than the default does, without asking again. */
export const LEAST_SCORE = 0.1;
/** What the slider begins with: the server's own default. */
export const SHOWN_SCORE = 0.5;
/** Characters: room for some words, each of which the server limits. */
export const LONGEST = 1000;
/** Commas of several scripts, semicolons and line breaks. */
const SEPARATORS = /[,;\n\u060c\u3001\uff0c\uff1b]/u;

/** @param {string} text @returns {string[]} each once, in their order: "coin, red  cup" is two */
export function wordsOf(text) {
  const words = text.split(SEPARATORS).map((part) => part.replace(/\s+/gu, " ").trim()).filter(Boolean);
  return [...new Set(words)];
}

/**
 * @param {string[]} words several are several concepts; none: what the examples show
 * @param {Example[]} examples
 * @returns {object} the prompt's fields of /v1/segment
 * @throws {Problem} one sentence, if it names nothing
 */
export function promptOf(words, examples) {
  if (!words.length && !examples.length) throw new Problem("refused", "type what to look for, or give an example of it");
  if (!words.length && !examples.some(({ label }) => label)) {
    throw new Problem("refused", "say also what to look for: type it, or choose one and press Like this");
  }
  if (words.length > 1 && examples.length) {
    throw new Problem("refused", "examples go with one word: leave only that one, or remove the examples");
  }
  return {
    ...(words.length && { text: words.length === 1 ? words[0] : words }),
    ...(examples.length && { exemplars: examples.map(({ box }) => box), exemplar_labels: examples.map(({ label }) => label) }),
    score_threshold: LEAST_SCORE,
    format: "rle",
  };
}
