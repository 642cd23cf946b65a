/** The sentence that the page shows for an error of a video: the server's own where it has one. */
import { Problem, asSentence, sentence } from "../net/problems.js";

/** @param {unknown} error @returns {string} */
export function videoSentence(error) {
  if (!(error instanceof Problem)) return sentence(error);
  if (error.code === "too_large" && !error.detail) return "This video is too large for a proxy before the server. Open a smaller one.";
  const isOurs = error.passes || error.code === "not_authorised" || !error.detail;
  return isOurs ? sentence(error) : asSentence(error.detail);
}
