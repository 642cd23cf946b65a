/**
 * Which channels are shown, and how: one as grey, or up to three as red, green and blue.
 *
 * @typedef {{grey: number}|{colours: [number|null, number|null, number|null]}} Look channels by their index from 0
 */

export const COLOURS = ["Red", "Green", "Blue"];
/** Dyes in the colour in which they usually shine; [red, green, blue]. */
const DYES = [
  /rfp|cy-?3|cy-?5|tritc|texas|cherry|tomato|rhod|alexa ?(5[4-9]|6)\d|\b(5[4-9]|6[0-4])\d\b/i,
  /gfp|fitc|yfp|venus|calcein|alexa ?4[6-9]\d|\b4[6-9]\d\b/i,
  /dapi|hoechst|cfp|alexa ?(3|40)\d|\b(3[5-9]|40)\d\b/i,
];

/** @param {number} index @param {string[]|null} names @returns {string} for people, who count from 1 */
export const channelTitle = (index, names) => names?.[index]?.trim() || `Channel ${index + 1}`;

/** Whether these are the colours of a photograph: their windows stay together, or the colours would change. */
export const isPhotograph = (names) => names?.slice(0, 3).join() === "red,green,blue";

/** @param {number} channels @param {string[]|null} names @returns {Look} */
export function firstLook(channels, names) {
  if (channels === 1) return { grey: 0 };
  if (isPhotograph(names)) return { colours: [0, 1, 2] };
  const colours = [null, null, null];
  const rest = [];
  for (let channel = 0; channel < Math.min(3, channels); channel += 1) {
    const dye = DYES.findIndex((known, colour) => colours[colour] === null && known.test(names?.[channel] ?? ""));
    if (dye >= 0) colours[dye] = channel;
    else rest.push(channel);
  }
  for (const channel of rest) colours[colours.indexOf(null)] = channel;
  return { colours };
}

/** @param {Look} look @returns {number[]} the channels that are shown, each once */
export const shownChannels = (look) =>
  "grey" in look ? [look.grey] : [...new Set(look.colours.filter((channel) => channel !== null))];

/** @param {Look} look @param {number} channels @returns {boolean} whether it can be drawn */
export const isPossible = (look, channels) =>
  shownChannels(look).length > 0 && shownChannels(look).every((channel) => channel >= 0 && channel < channels);

/**
 * Draws rows as RGBA, opaque.
 *
 * @param {import("./planes.js").Planes} planes
 * @param {Look} look
 * @param {Uint8Array[]} tables of each channel, from sample to brightness; see window.js
 * @param {Uint8ClampedArray} pixels [ceil((to - from) / stride) * ceil(width / stride) * 4], written
 * @param {{from: number, to: number, stride: number}} rows only each stride-th pixel across and down
 */
export function paint(planes, look, tables, pixels, { from, to, stride }) {
  if ("grey" in look) paintGrey(planes, look.grey, tables[look.grey], pixels, { from, to, stride });
  else paintColours(planes, look.colours, tables, pixels, { from, to, stride });
}

function paintGrey({ width, data }, channel, table, pixels, { from, to, stride }) {
  const plane = data[channel];
  let at = 0;
  for (let y = from; y < to; y += stride) {
    for (let x = y * width; x < (y + 1) * width; x += stride) {
      const shown = table[plane[x]];
      pixels[at] = pixels[at + 1] = pixels[at + 2] = shown;
      pixels[at + 3] = 255;
      at += 4;
    }
  }
}

function paintColours({ width, data }, colours, tables, pixels, { from, to, stride }) {
  // A colour without a channel reads the first plane through a table of zeros: no test for each pixel.
  const black = new Uint8Array(tables[0].length);
  const [reds, greens, blues] = colours.map((channel) => data[channel ?? 0]);
  const [red, green, blue] = colours.map((channel) => (channel === null ? black : tables[channel]));
  let at = 0;
  for (let y = from; y < to; y += stride) {
    for (let x = y * width; x < (y + 1) * width; x += stride) {
      pixels[at] = red[reds[x]];
      pixels[at + 1] = green[greens[x]];
      pixels[at + 2] = blue[blues[x]];
      pixels[at + 3] = 255;
      at += 4;
    }
  }
}
