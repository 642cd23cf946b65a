/** Which dropped files are videos, or may be one: by name, type and first bytes. The rest of this folder is loaded only for such files. */

const VIDEO_NAME = /\.(mp4|m4v|mov|mkv|webm|avi|mpe?g|m?ts|m2ts|ogv|y4m|wmv|flv|3gp)$/i;
const ANIMATED = 2;

/** For the file dialog. */
export const ENDINGS = "video/*,.mp4,.m4v,.mov,.mkv,.webm,.avi,.mpg,.mpeg,.mts,.m2ts,.ogv,.y4m";

/** @param {File} file @returns {boolean} */
export const isVideo = ({ name, type }) => type.startsWith("video/") || VIDEO_NAME.test(name);

/** @param {Uint8Array} head the file's first bytes @returns {boolean} whether it is a WebP with several frames */
export function isAnimatedWebp(head) {
  const text = String.fromCharCode(...head.slice(0, 16));
  return text.startsWith("RIFF") && text.slice(8, 16) === "WEBPVP8X" && (head[20] & ANIMATED) !== 0;
}
