/** The controls of the contrast: page, channels, histogram, numbers. */
import { $, element, radioGroup } from "../ui/dom.js";
import { COLOURS, channelTitle, isPossible, shownChannels } from "./channels.js";
import { Histogram } from "./histogram.js";
import { levelsOf, sampleOf } from "./planes.js";
import * as views from "./view.js";
import { extentOf, sumOf, windowOf } from "./window.js";

const ALL = "colours";
const NONE = "none";

export class ContrastPanel {
  /** @param {import("./contrast.js").Contrast} contrast @param {import("./pages.js").Pages} pages */
  constructor(contrast, pages) {
    this._contrast = contrast;
    this._pages = pages;
    /** The channel whose window the handles move. */
    this._channel = 0;
    this._colours = { colours: [null, null, null] };
    this._build();
    contrast.addEventListener("view", () => this._show());
    pages.addEventListener("pages", () => this._showPages());
    this._show();
  }

  // -- elements ----------------------------------------------------------------------------------------------------

  _build() {
    const row = (label, control) => element("label", { class: "row" }, element("span", { class: "label" }, label), control);
    const choice = (onchange) => element("select", { onchange });
    this._told = element("p", { class: "fine", id: "contrast-told" });
    this._page = choice(() => this._pages.open(Number(this._page.value)));
    this._pageRow = row("Page", this._page);
    this._look = choice(() => this._chooseLook());
    this._lookRow = row("Show", this._look);
    this._colour = COLOURS.map((_, colour) => choice(() => this._chooseColour(colour)));
    this._colourRows = element("div", { class: "colours" }, ...COLOURS.map((name, colour) => row(name, this._colour[colour])));
    this._linked = element("input", { type: "checkbox", onchange: () => this._link() });
    this._linkedRow = element("label", { class: "row" }, this._linked, element("span", { class: "label" }, "One window for all channels"));
    this._whose = element("div", { class: "segmented", role: "radiogroup", "aria-label": "Window of" });
    this._markWhose = radioGroup(this._whose, "channel", (channel) => {
      this._channel = Number(channel);
      this._show();
    });
    this._histogram = new Histogram({ move: (end, sample) => this._move(end, sample), release: () => this._contrast.settle() });
    this._numbers = Object.fromEntries(["low", "high"].map((end) => [end, element("input", { type: "number", onchange: () => this._type(end) })]));
    const numbers = element("div", { class: "window-numbers" }, row("Black", this._numbers.low), row("White", this._numbers.high));
    const button = (label, title, change) =>
      element("button", { type: "button", class: "button", title, onclick: () => this._become(change(this._contrast.view, this._contrast.histograms)) }, label);
    const buttons = element("div", { class: "window-buttons" },
      button("Auto", "Stretched, so that 0.35 % of the pixels are black and 0.35 % white", views.stretched),
      button("Full", "All values: of 8 bits as in the file, else from the darkest to the brightest", views.whole));
    this._all = element("button", { type: "button", class: "button", onclick: () => this._pages.useForAll(this._contrast.view) });
    this._window = element("div", { class: "window" },
      this._lookRow, this._colourRows, this._linkedRow, this._whose, this._histogram.node, numbers, buttons, this._all);
    $("contrast-body").append(this._told, this._pageRow, this._window);
    $("contrast-details").ontoggle = () => this._show();
  }

  // -- changes -----------------------------------------------------------------------------------------------------

  _become(view) {
    this._contrast.preview(view);
    this._contrast.settle();
  }

  _moved(end, sample) {
    const { view } = this._contrast;
    const { low, high } = { ...view.windows[this._channel], [end]: sample };
    return views.withWindow(view, this._channel, windowOf(low, high, levelsOf(view.dtype), end));
  }

  _move(end, sample) {
    this._contrast.preview(this._moved(end, sample));
  }

  _type(end) {
    const { view } = this._contrast;
    const value = this._numbers[end].valueAsNumber;
    if (Number.isFinite(value)) this._become(this._moved(end, sampleOf(value, view.range, levelsOf(view.dtype))));
    this._numbers[end].value = views.plainValue(view, this._contrast.view.windows[this._channel][end]);
  }

  _chooseLook() {
    const { view } = this._contrast;
    if ("colours" in view.look) this._colours = view.look;
    this._become(views.withLook(view, this._look.value === ALL ? this._colours : { grey: Number(this._look.value) }));
  }

  _chooseColour(colour) {
    const { view } = this._contrast;
    const chosen = this._colour[colour].value;
    const look = { colours: view.look.colours.with(colour, chosen === NONE ? null : Number(chosen)) };
    if (isPossible(look, view.channels)) this._become(views.withLook(view, look));
    else this._show(); // nothing would be seen
  }

  _link() {
    this._become(views.linked(this._contrast.view, this._linked.checked, this._channel));
  }

  // -- display -----------------------------------------------------------------------------------------------------

  _show() {
    const { view, histograms, isScientific, hasPicture } = this._contrast;
    $("contrast").hidden = !hasPicture;
    const details = $("contrast-details");
    if (isScientific && !this._wasScientific) details.open = true;
    if (!isScientific && this._wasScientific) details.open = false;
    this._wasScientific = isScientific;
    this._window.hidden = !histograms;
    this._told.textContent = view ? explanationOf(view) : "";
    this._showPages();
    if (!details.open || !hasPicture) return;
    if (histograms) this._showWindow(view, histograms);
    else this._contrast.load();
  }

  _showPages() {
    const { page, count } = this._pages.state;
    this._pageRow.hidden = count < 2;
    this._all.hidden = count < 2;
    this._all.textContent = this._pages.working || `Use for all ${count} pages`;
    this._all.disabled = Boolean(this._pages.working);
    if (this._page.options.length !== count) {
      this._page.replaceChildren(...Array.from({ length: count }, (_, index) =>
        element("option", { value: String(index + 1) }, `${index + 1} of ${count}`)));
    }
    this._page.value = String(page);
  }

  _showWindow(view, histograms) {
    this._showChannels(view);
    const shown = shownChannels(view.look);
    if (!shown.includes(this._channel)) [this._channel] = shown;
    this._showWhose(view, shown);
    const counts = view.isLinked ? this._sum(histograms, shown) : histograms[this._channel];
    const window = view.windows[this._channel];
    const whole = view.dtype === "uint8" ? { low: 0, high: 255 } : extentOf(counts);
    const extent = { low: Math.min(whole.low, window.low), high: Math.max(whole.high, window.high) };
    this._histogram.show(counts, extent, window, (sample) => views.shownValue(view, sample));
    const step = views.stepOf(view);
    for (const [end, input] of Object.entries(this._numbers)) {
      input.step = String(step);
      if (document.activeElement === input) continue;
      input.value = views.plainValue(view, window[end]);
    }
  }

  /** Summed once for each image and choice of channels: it is asked for at each move. */
  _sum(histograms, shown) {
    const key = shown.join();
    if (this._summed?.histograms !== histograms || this._summed.key !== key) {
      this._summed = { histograms, key, counts: sumOf(shown.map((channel) => histograms[channel])) };
    }
    return this._summed.counts;
  }

  _showChannels({ channels, names, look, isLinked }) {
    this._lookRow.hidden = this._linkedRow.hidden = channels < 2;
    this._linked.checked = isLinked;
    const titles = Array.from({ length: channels }, (_, channel) => channelTitle(channel, names));
    const key = titles.join("\n");
    if (this._titled !== key) {
      const option = (value, title) => element("option", { value: String(value) }, title);
      this._look.replaceChildren(option(ALL, "Several in colour"), ...titles.map((title, channel) => option(channel, title)));
      for (const select of this._colour) {
        // These are narrow: "Channel 12" would be cut off before its number.
        const short = titles.map((_, channel) => option(channel, names?.[channel]?.trim() || String(channel + 1)));
        select.replaceChildren(option(NONE, "None"), ...short);
      }
      this._titled = key;
      this._colours = "colours" in look ? look : { colours: [0, 1, null] };
    }
    const isGrey = "grey" in look;
    this._look.value = isGrey ? String(look.grey) : ALL;
    this._colourRows.hidden = isGrey;
    if (!isGrey) for (const [colour, channel] of look.colours.entries()) this._colour[colour].value = String(channel ?? NONE);
  }

  _showWhose({ isLinked, names }, shown) {
    this._whose.hidden = isLinked || shown.length < 2;
    const key = JSON.stringify([names, shown]);
    if (this._whoseKey !== key) {
      this._whose.replaceChildren(...shown.map((channel) =>
        element("button", { type: "button", role: "radio", "data-channel": String(channel) }, channelTitle(channel, names))));
      this._whoseKey = key;
    }
    this._markWhose(this._channel);
  }
}

function explanationOf(view) {
  const missing = view.notFinite ? " Values that are no numbers are black." : "";
  return views.explanation(view) + missing;
}
