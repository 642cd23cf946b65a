/** The histogram with its two handles: a drawing under two range inputs, which keyboards and screen readers know. */
import { element } from "../ui/dom.js";
import { barsOf } from "./window.js";

const SVG = "http://www.w3.org/2000/svg";
const BARS = 128;
const HEIGHT = 48;

const drawn = (tag, attributes) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

export class Histogram {
  /**
   * @param {object} tell
   * @param {(end: "low"|"high", sample: number) => void} tell.move while a handle moves
   * @param {() => void} tell.release
   */
  constructor({ move, release }) {
    this._bars = drawn("path", { class: "bars" });
    this._dark = drawn("rect", { class: "outside", y: 0, height: HEIGHT });
    this._bright = drawn("rect", { class: "outside", y: 0, height: HEIGHT });
    this._ramp = drawn("path", { class: "ramp" });
    const picture = drawn("svg", { viewBox: `0 0 ${BARS} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    picture.append(this._bars, this._dark, this._bright, this._ramp);
    this._inputs = Object.fromEntries(
      [["low", "Black from here down"], ["high", "White from here up"]].map(([end, label]) => {
        const input = element("input", { type: "range", "aria-label": label, "data-end": end });
        input.oninput = () => move(end, Number(input.value));
        input.onchange = release;
        return [end, input];
      }),
    );
    this.node = element("div", { class: "histogram" }, picture, ...Object.values(this._inputs));
    this._drawn = null;
  }

  /**
   * @param {Uint32Array} counts @param {import("./window.js").Window} extent samples that are drawn
   * @param {import("./window.js").Window} window @param {(sample: number) => string} shown a sample as text
   */
  show(counts, extent, window, shown) {
    const key = `${extent.low} ${extent.high}`;
    if (this._drawn?.counts !== counts || this._drawn.key !== key) {
      this._bars.setAttribute("d", outline(barsOf(counts, extent, BARS)));
      this._drawn = { counts, key };
    }
    const place = (sample) => ((sample - extent.low) / (extent.high - extent.low)) * BARS;
    const [from, to] = [place(window.low), place(window.high)];
    this._dark.setAttribute("width", String(from));
    this._bright.setAttribute("x", String(to));
    this._bright.setAttribute("width", String(BARS - to));
    this._ramp.setAttribute("d", `M0 ${HEIGHT}H${from}L${to} 0H${BARS}`);
    for (const [end, input] of Object.entries(this._inputs)) {
      Object.assign(input, { min: extent.low, max: extent.high, step: Math.max(1, Math.floor((extent.high - extent.low) / 256)) });
      if (document.activeElement !== input || Number(input.value) !== window[end]) input.value = String(window[end]);
      input.setAttribute("aria-valuetext", shown(window[end]));
    }
    // Where both handles are at the right, the left one must be on top, or neither could be moved.
    this._inputs.low.classList.toggle("above", from > BARS / 2);
  }
}

function outline(bars) {
  const steps = Array.from(bars, (bar, index) => `V${((1 - bar) * HEIGHT).toFixed(1)}H${index + 1}`);
  return `M0 ${HEIGHT}${steps.join("")}V${HEIGHT}Z`;
}
