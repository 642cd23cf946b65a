/**
 * Which of the served models tracks objects through a video.
 *
 * @typedef {{id: string, name: string, title: string, licence: string, default: boolean, video?: boolean}} Model
 */

/** The one whose memory this project has trained: it needs no download, and Meta's are better. */
export const EMBEDDED = "sam2:tiny_video";

export const NO_MODEL =
  `This server has no model that tracks objects through videos: start it with triton-sam serve ${EMBEDDED}, ` +
  "or set up one with Meta's weights (triton-sam setup sam2.1:tiny) and serve that.";

/** @param {Model[]} models @returns {Model[]} those that take videos, the one to use first */
export function videoModels(models) {
  const rank = ({ id, default: isDefault }) => (id === EMBEDDED ? 2 : isDefault ? 0 : 1);
  return models.filter(({ video }) => video).sort((one, other) => rank(one) - rank(other));
}

/** @param {string} id */
export const isEmbedded = (id) => id === EMBEDDED;
