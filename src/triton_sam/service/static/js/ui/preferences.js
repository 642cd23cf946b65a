/** What a person likes, kept between visits. Storage may be forbidden: then it lasts until the page is closed. */

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
    // Nothing to be done, and nothing lost but a preference.
  }
}
