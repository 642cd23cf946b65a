/** The id of the open video, which outlives a reload of the tab. */
const KEY = "triton-sam.video";

/** @returns {string|null} */
export function keptVideo() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null; // storage is disabled
  }
}

/** @param {string|null} id */
export function keepVideo(id) {
  try {
    if (id) sessionStorage.setItem(KEY, id);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Storage is disabled: after a reload the video has to be opened again.
  }
}
