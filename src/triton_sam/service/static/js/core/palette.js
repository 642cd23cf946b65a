/** Colours that are distinguishable on photographs and grey micrographs, also with most kinds of colour blindness. */
const BASE = ["#2f8fff", "#ff7a1a", "#19b35f", "#e6399b", "#ffd02f", "#8f5bff", "#00bcc9", "#f0433a", "#a3c614", "#c98a5b"];
/** Then lighter ones, then darker ones. */
const COLOURS = [...BASE, ...BASE.map((colour) => mixed(colour, 255)), ...BASE.map((colour) => mixed(colour, 0))];

/**
 * The colour for the next object: the least used one so far; of several, the first.
 * @param {string[]} used colours of the existing objects
 * @returns {string} "#rrggbb"
 */
export function nextColour(used) {
  const uses = new Map(COLOURS.map((colour) => [colour, 0]));
  for (const colour of used) if (uses.has(colour)) uses.set(colour, uses.get(colour) + 1);
  const least = Math.min(...uses.values());
  return COLOURS.find((colour) => uses.get(colour) === least);
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
