/**
 * The contrast window: samples from `low` (black) to `high` (white), and where it is put automatically.
 *
 * @typedef {{low: number, high: number}} Window whole samples, low < high
 */

/** Of the pixels, at each end, that the automatic stretch makes black or white. */
export const CUT_SHARE = 0.0035;

/** @param {Uint8Array|Uint16Array} plane @param {number} levels @returns {Uint32Array} [levels] */
export function histogramOf(plane, levels) {
  const counts = new Uint32Array(levels);
  for (let at = 0; at < plane.length; at += 1) counts[plane[at]] += 1;
  return counts;
}

/** @param {Uint32Array[]} histograms of several channels @returns {Uint32Array} */
export function sumOf(histograms) {
  const sum = histograms[0].slice();
  for (const counts of histograms.slice(1)) for (let level = 0; level < sum.length; level += 1) sum[level] += counts[level];
  return sum;
}

/**
 * Without the samples that have no value in the file, which are 0 here: they would pull the window down.
 * @param {Uint32Array[]} histograms of the channels of a page @param {number} notFinite samples of the page
 * @returns {Uint32Array[]} the same arrays if there are none
 */
export function withoutMissing(histograms, notFinite) {
  const zeros = histograms.reduce((sum, counts) => sum + counts[0], 0);
  if (!notFinite || !zeros) return histograms;
  return histograms.map((counts) => {
    const kept = counts.slice();
    kept[0] = Math.max(0, counts[0] - Math.round((notFinite * counts[0]) / zeros)); // which channel has them is not told
    return kept;
  });
}

/**
 * @param {Uint32Array} counts @param {number} share 0 to 1
 * @returns {number} the smallest sample that so many of the pixels do not exceed (numpy: method="inverted_cdf")
 */
export function percentile(counts, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  const wanted = Math.max(1, share * total - 1e-9);
  let seen = 0;
  for (let level = 0; level < counts.length; level += 1) {
    seen += counts[level];
    if (seen >= wanted) return level;
  }
  return 0;
}

/** @param {Uint32Array} counts @returns {Window} from the darkest to the brightest sample */
export function extentOf(counts) {
  return windowOf(percentile(counts, 0), percentile(counts, 1), counts.length);
}

/** @param {Uint32Array} counts @returns {Window} the automatic stretch */
export function stretchOf(counts) {
  const low = percentile(counts, CUT_SHARE);
  const high = percentile(counts, 1 - CUT_SHARE);
  // A few bright spots on an even ground: the cut would leave nothing.
  return high > low ? { low, high } : extentOf(counts);
}

/** @param {Uint32Array} counts @returns {Window} all there is: what the file says for 8 bits, from darkest to brightest for more */
export const wholeOf = (counts) => (counts.length === 256 ? { low: 0, high: 255 } : extentOf(counts));

/** @returns {Window} with low < high, within the levels; the end that was moved last stays where it can */
export function windowOf(low, high, levels, moved = "low") {
  const within = (sample, least, most) => Math.min(most, Math.max(least, Math.round(sample)));
  if (moved === "high") {
    const top = within(high, 1, levels - 1);
    return { low: within(low, 0, top - 1), high: top };
  }
  const bottom = within(low, 0, levels - 2);
  return { low: bottom, high: within(high, bottom + 1, levels - 1) };
}

/** @param {Window} window @param {number} levels @returns {Uint8Array} [levels]: what each sample is shown as */
export function tableOf({ low, high }, levels) {
  const table = new Uint8Array(levels);
  for (let level = 0; level < levels; level += 1) {
    const share = Math.min(1, Math.max(0, (level - low) / (high - low)));
    table[level] = Math.floor(255 * share + 0.5);
  }
  return table;
}

/**
 * @param {Uint32Array} counts @param {Window} extent that is drawn @param {number} bars
 * @returns {Float64Array} [bars], the highest is 1; square roots, so that few bright pixels are seen beside much background
 */
export function barsOf(counts, { low, high }, bars) {
  const sums = new Float64Array(bars);
  const width = (high - low + 1) / bars;
  for (let level = low; level <= high; level += 1) sums[Math.min(bars - 1, Math.floor((level - low) / width))] += counts[level];
  const most = Math.max(1, ...sums);
  return sums.map((sum) => Math.sqrt(sum / most));
}
