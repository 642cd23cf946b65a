/** User preferences in local storage. If storage is disabled, they last until the page is closed. */

const PREFIX = "triton-sam.";

/** @param {string} name @param {string} fallback @returns {string} */
export function preference(name, fallback) {
  try {
    return localStorage.getItem(PREFIX + name) ?? fallback;
  } catch {
    return fallback;
  }
}

/** @param {string} name @param {string|number} value */
export function prefer(name, value) {
  try {
    localStorage.setItem(PREFIX + name, String(value));
  } catch {
    // Storage is disabled; only a preference is lost.
  }
}
