/** Style sheets of parts of the page that are loaded when they are needed. */
import { element } from "./dom.js";

/** @param {URL} address @returns {Promise<void>} when it applies; rejects if it cannot be loaded */
export function loadStyles({ href }) {
  return new Promise((resolve, reject) => {
    const link = element("link", { rel: "stylesheet", href, onload: () => resolve() });
    link.onerror = () => {
      link.remove();
      reject(new Error(`${href} cannot be loaded`));
    };
    document.head.append(link);
  });
}
