/** Colours that stay apart from each other on photographs and on grey micrographs, also for most colour-blind people. */
const BASE = ["#2f8fff", "#ff7a1a", "#19b35f", "#e6399b", "#ffd02f", "#8f5bff", "#00bcc9", "#f0433a", "#a3c614", "#c98a5b"];
/** Then lighter ones, then darker ones. */
const COLOURS = [...BASE, ...BASE.map((colour) => mixed(colour, 255)), ...BASE.map((colour) => mixed(colour, 0))];

/**
 * The colour for the next object: the one that is used least so far, the earliest of those.
 * @param {string[]} used colours of the objects that are there
 * @returns {string} "#rrggbb"
 */
export function nextColour(used) {
  const uses = COLOURS.map((colour) => used.filter((other) => other === colour).length);
  return COLOURS[uses.indexOf(Math.min(...uses))];
}

/**
 * @param {string} colour "#rrggbb"
 * @returns {[number, number, number]} 0 to 255
 */
export function rgb(colour) {
  const number = Number.parseInt(colour.slice(1), 16);
  return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}

function mixed(colour, other) {
  const parts = rgb(colour).map((part) => Math.round(part * 0.55 + other * 0.45));
  return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}
