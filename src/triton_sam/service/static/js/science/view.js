/**
 * How one image of many bits, channels or pages is shown, which is what the model is given. Kept with the image.
 *
 * @typedef {object} View immutable, can be stored
 * @property {Blob} source the page's samples, see planes.js
 * @property {number} width @property {number} height @property {number} channels @property {"uint8"|"uint16"} dtype
 * @property {import("./planes.js").Range} range
 * @property {number} notFinite samples without a value
 * @property {string[]|null} names of the channels
 * @property {string} origin name of the file
 * @property {string} stack the same for all pages of a file
 * @property {number} page from 1 @property {number} pages of the file
 * @property {import("./channels.js").Look} look
 * @property {import("./window.js").Window[]} windows of each channel
 * @property {boolean} isLinked all channels have one window
 */
import { channelTitle, firstLook, isPhotograph, shownChannels } from "./channels.js";
import { levelsOf, valueOf } from "./planes.js";
import { stretchOf, sumOf, wholeOf, withoutMissing } from "./window.js";

/**
 * @param {Omit<View, "look"|"windows"|"isLinked">} about
 * @param {Uint32Array[]} histograms of each channel
 * @param {boolean} isStretched
 * @returns {View}
 */
export function newView(about, histograms, isStretched) {
  const isLinked = isPhotograph(about.names);
  const view = { ...about, look: firstLook(about.channels, about.names), windows: [], isLinked };
  return isStretched ? stretched(view, histograms) : whole(view, histograms);
}

/** @param {View} view @param {Uint32Array[]} histograms @returns {View} with the automatic windows of all channels */
export const stretched = (view, histograms) => ({ ...view, windows: eachWindow(view, histograms, stretchOf) });

/** @param {View} view @param {Uint32Array[]} histograms @returns {View} from the darkest to the brightest value */
export const whole = (view, histograms) => ({ ...view, windows: eachWindow(view, histograms, wholeOf) });

function eachWindow({ isLinked, look, notFinite }, histograms, rule) {
  const counted = withoutMissing(histograms, notFinite);
  if (isLinked) {
    const window = rule(sumOf(shownChannels(look).map((channel) => counted[channel])));
    return counted.map(() => window);
  }
  return counted.map(rule);
}

/** @param {View} view @param {number} channel whose window it is; if they are linked, of all @returns {View} */
export function withWindow(view, channel, window) {
  const windows = view.windows.map((other, index) => (view.isLinked || index === channel ? window : other));
  return { ...view, windows };
}

/** @param {View} view @param {import("./channels.js").Look} look @returns {View} */
export const withLook = (view, look) => ({ ...view, look });

/** @param {View} view @param {boolean} isLinked @param {number} channel whose window the others take @returns {View} */
export const linked = (view, isLinked, channel) =>
  isLinked ? { ...view, isLinked, windows: view.windows.map(() => view.windows[channel]) } : { ...view, isLinked };

/** Whether two views of one source look alike. */
export const looksSame = (a, b) => JSON.stringify([a.look, a.windows]) === JSON.stringify([b.look, b.windows]);

/** @param {{origin: string, page: number, pages: number}} view @returns {string} the page's name in the list and in exports */
export const pageName = ({ origin, page, pages }) => (pages > 1 ? `${origin}#${page}` : origin);

/** @param {View} view @param {number} sample @returns {string} in the file's values */
export function shownValue({ range, dtype }, sample) {
  if (isOwn({ range, dtype })) return sample.toLocaleString("en");
  const value = valueOf(sample, range, levelsOf(dtype));
  const span = range.high - range.low;
  const digits = Math.min(12, Math.max(0, 3 - Math.floor(Math.log10(span || 1))));
  if (Math.abs(value) >= 1e9 || digits >= 9) return value.toExponential(3);
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Whether the samples are the file's own values. */
const isOwn = ({ range, dtype }) => range.low === 0 && range.high === levelsOf(dtype) - 1;

/** @param {View} view @param {number} sample @returns {string} in the file's values, for an input */
export function plainValue(view, sample) {
  if (isOwn(view)) return String(sample);
  return String(Number(valueOf(sample, view.range, levelsOf(view.dtype)).toPrecision(6)));
}

/** @param {View} view @returns {number} a small step in the file's values */
export function stepOf(view) {
  const { low, high } = view.range;
  return isOwn(view) || high <= low ? 1 : 10 ** Math.floor(Math.log10((high - low) / 100));
}

/** @param {View} view @returns {string} what was done to the file's values */
export function explanation(view) {
  const shown = shownChannels(view.look);
  const isWhole = ({ low, high }) => view.dtype === "uint8" && low === 0 && high === 255;
  if (shown.every((channel) => isWhole(view.windows[channel]))) return "Brightness as in the file; the model sees this.";
  const between = ({ low, high }) => `from ${shownValue(view, low)} to ${shownValue(view, high)}`;
  if (view.isLinked || shown.length === 1) return `Stretched ${between(view.windows[shown[0]])}; the model sees this.`;
  const parts = shown.map((channel) => `${channelTitle(channel, view.names)} ${between(view.windows[channel])}`);
  return `Stretched: ${parts.join(", ")}. The model sees this.`;
}
