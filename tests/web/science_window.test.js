import assert from "node:assert/strict";
import test from "node:test";

import { channelTitle, firstLook, isPossible, shownChannels } from "../../src/triton_sam/service/static/js/science/channels.js";
import { compressed, expanded, parseHeader, planesOf, sampleOf, valueOf } from "../../src/triton_sam/service/static/js/science/planes.js";
import { develop, pixelsOf, samplesOf } from "../../src/triton_sam/service/static/js/science/rendering.js";
import { explanation, linked, newView, stretched, whole, withLook, withWindow } from "../../src/triton_sam/service/static/js/science/view.js";
import * as windows from "../../src/triton_sam/service/static/js/science/window.js";
import { oneOf, randomNumbers } from "./helpers.js";

const random = randomNumbers(21);
const noise = (length, most) => Uint16Array.from({ length }, () => Math.floor(random() * random() * most));

test("a percentile is the smallest value that so many pixels do not exceed", () => {
  for (let round = 0; round < 60; round += 1) {
    const plane = noise(1 + Math.floor(random() * 300), oneOf(random, [2, 40, 65536]));
    const sorted = [...plane].sort((a, b) => a - b);
    const counts = windows.histogramOf(plane, 65536);
    for (const share of [0, 0.0035, 0.25, 0.5, 0.9965, 1]) {
      const at = Math.max(0, Math.ceil(share * sorted.length - 1e-9) - 1);
      assert.equal(windows.percentile(counts, share), sorted[at], `${share} of ${sorted.length}`);
    }
  }
});

test("windows always have a dark and a bright end, in order", () => {
  const flat = windows.histogramOf(new Uint16Array(10).fill(7), 65536);
  const white = windows.histogramOf(new Uint16Array(10).fill(65535), 65536);
  const nothing = new Uint32Array(65536);
  const fewBright = windows.histogramOf(Uint16Array.from({ length: 1000 }, (_, at) => (at === 0 ? 9000 : 50)), 65536);
  for (const counts of [flat, white, nothing]) {
    for (const { low, high } of [windows.stretchOf(counts), windows.wholeOf(counts), windows.extentOf(counts)]) {
      assert.ok(low >= 0 && low < high && high <= 65535, `${low} ${high}`);
    }
  }
  assert.deepEqual(windows.stretchOf(fewBright), { low: 50, high: 9000 });
  assert.deepEqual(windows.windowOf(90, 40, 256, "low"), { low: 90, high: 91 });
  assert.deepEqual(windows.windowOf(90, 40, 256, "high"), { low: 39, high: 40 });
  assert.deepEqual(windows.windowOf(-5, 1e9, 256), { low: 0, high: 255 });
  assert.deepEqual(windows.windowOf(255, 255, 256), { low: 254, high: 255 });
  assert.deepEqual(windows.windowOf(0, 0, 256, "high"), { low: 0, high: 1 });
});

test("the table: black below, white above, each value in between as it is for the whole of 8 bits", () => {
  assert.deepEqual([...windows.tableOf({ low: 0, high: 255 }, 256)], Array.from({ length: 256 }, (_, level) => level));
  const table = windows.tableOf({ low: 312, high: 4020 }, 65536);
  assert.deepEqual([table[0], table[312], table[4020], table[65535]], [0, 0, 255, 255]);
  assert.equal(table[2166], 128);
});

test("bars of a histogram count every pixel once", () => {
  const counts = windows.histogramOf(Uint16Array.of(10, 10, 10, 10, 13, 20), 65536);
  const bars = windows.barsOf(counts, { low: 10, high: 20 }, 11);
  assert.deepEqual([...bars], [1, 0, 0, 0.5, 0, 0, 0, 0, 0, 0, 0.5]);
  assert.deepEqual([...windows.barsOf(counts, { low: 10, high: 20 }, 2)].map((bar) => bar ** 2), [1, 1 / 5].map((b) => Math.sqrt(b) ** 2));
});

test("samples that have no value in the file do not pull the window down", () => {
  const plane = Uint16Array.from({ length: 1000 }, (_, at) => (at < 500 ? 0 : 1000 + at));
  const counts = [windows.histogramOf(plane, 65536)];
  assert.equal(windows.stretchOf(counts[0]).low, 0);
  assert.equal(windows.stretchOf(windows.withoutMissing(counts, 500)[0]).low, 1501);
  assert.equal(windows.withoutMissing(counts, 0), counts);
});

test("the header of the samples is read, and nonsense is refused with a sentence", () => {
  const header = { width: 3, height: 2, channels: 1, pages: 1, dtype: "uint16", low: -1.5, high: 2.5, not_finite: 4 };
  const { range, notFinite } = parseHeader(JSON.stringify(header));
  assert.deepEqual([range, notFinite], [{ low: -1.5, high: 2.5 }, 4]);
  assert.deepEqual(parseHeader(JSON.stringify({ ...header, dtype: "uint8" })).range, { low: 0, high: 255 });
  for (const text of [null, "", "{", "null", "[]", '{"width": 3}', JSON.stringify({ ...header, dtype: "toString" })]) {
    assert.throws(() => parseHeader(text), /cannot be read/, String(text));
  }
  assert.throws(() => planesOf(new ArrayBuffer(11), { ...header }), { code: "unreachable" });
});

test("values of the file and samples are each other's inverse", () => {
  for (const range of [{ low: 0, high: 65535 }, { low: -3.25, high: 1e-3 }, { low: 0, high: 4e9 }]) {
    for (const sample of [0, 1, 312, 65535]) assert.equal(sampleOf(valueOf(sample, range, 65536), range, 65536), sample);
  }
  assert.equal(sampleOf(-9, { low: 0, high: 255 }, 256), 0);
  assert.equal(sampleOf(900, { low: 0, high: 255 }, 256), 255);
  assert.equal(sampleOf(5, { low: 5, high: 5 }, 256), 0);
});

test("samples that are kept come back", async () => {
  const samples = noise(5000, 65536);
  assert.deepEqual(new Uint16Array(await expanded(await compressed(new Blob([samples])))), samples);
});

test("dyes get their colours, other channels red, green, blue in order", () => {
  assert.deepEqual(firstLook(1, null), { grey: 0 });
  assert.deepEqual(firstLook(2, null), { colours: [0, 1, null] });
  assert.deepEqual(firstLook(4, null), { colours: [0, 1, 2] });
  assert.deepEqual(firstLook(2, ["DAPI", "GFP"]), { colours: [null, 1, 0] });
  assert.deepEqual(firstLook(3, ["Hoechst 33342", "phase", "mCherry"]), { colours: [2, 1, 0] });
  assert.deepEqual(firstLook(3, ["DAPI", "DAPI", ""]), { colours: [1, 2, 0] });
  assert.equal(channelTitle(1, ["DAPI", " "]), "Channel 2");
  assert.deepEqual(shownChannels({ colours: [2, null, 2] }), [2]);
  assert.equal(isPossible({ colours: [null, null, null] }, 3), false);
  assert.equal(isPossible({ grey: 3 }, 3), false);
});

const about = (channels, more = {}) => ({
  width: 4, height: 3, channels, dtype: "uint16", range: { low: 0, high: 65535 }, notFinite: 0,
  names: null, origin: "a.tif", page: 1, pages: 1, ...more,
});

test("pixels are the table of the channel's own window, of the chosen channels, with any stride", () => {
  const planes = { width: 4, height: 3, data: [noise(12, 5000), noise(12, 500), noise(12, 60000)] };
  const counts = planes.data.map((plane) => windows.histogramOf(plane, 65536));
  const view = withLook(newView(about(3, { names: ["a", "b", "c"] }), counts, true), { colours: [2, null, 0] });
  const shade = (channel, at) => {
    const { low, high } = view.windows[channel];
    return Math.floor(255 * Math.min(1, Math.max(0, (planes.data[channel][at] - low) / (high - low))) + 0.5);
  };
  const { data } = pixelsOf(planes, view);
  for (let at = 0; at < 12; at += 1) {
    assert.deepEqual([...data.slice(4 * at, 4 * at + 4)], [shade(2, at), 0, shade(0, at), 255]);
  }
  const grey = pixelsOf(planes, withLook(view, { grey: 1 }), 2);
  assert.deepEqual([grey.width, grey.height], [2, 2]);
  assert.deepEqual([0, 1, 2, 3].map((at) => grey.data[4 * at]), [0, 2, 8, 10].map((at) => shade(1, at)));
});

test("a photograph keeps its colours: one window for all, which one can undo", () => {
  const counts = [noise(50, 3000), noise(50, 900), noise(50, 100)].map((plane) => windows.histogramOf(plane, 65536));
  const view = newView(about(3, { names: ["red", "green", "blue"] }), counts, true);
  assert.equal(view.isLinked, true);
  assert.equal(new Set(view.windows.map((window) => JSON.stringify(window))).size, 1);
  const free = stretched(linked(view, false, 0), counts);
  assert.equal(new Set(free.windows.map((window) => JSON.stringify(window))).size, 3);
  const moved = withWindow(free, 1, { low: 3, high: 9 });
  assert.deepEqual([moved.windows[0], moved.windows[1]], [free.windows[0], { low: 3, high: 9 }]);
  assert.deepEqual(linked(moved, true, 1).windows, Array(3).fill({ low: 3, high: 9 }));
  assert.deepEqual(withWindow(view, 1, { low: 3, high: 9 }).windows, Array(3).fill({ low: 3, high: 9 }));
});

test("the page says what it did, in the file's values", () => {
  const counts = [windows.histogramOf(Uint16Array.of(312, 4020), 65536)];
  assert.equal(explanation(newView(about(1), counts, true)), "Stretched from 312 to 4,020; the model sees this.");
  const float = newView(about(1, { range: { low: -1, high: 1 } }), [windows.histogramOf(Uint16Array.of(0, 65535), 65536)], true);
  assert.equal(explanation(float), "Stretched from -1 to 1; the model sees this.");
  const eight = newView(about(1, { dtype: "uint8" }), [windows.histogramOf(Uint8Array.of(9, 90), 256)], false);
  assert.equal(explanation(eight), "Brightness as in the file; the model sees this.");
  const two = newView(about(2, { names: ["DAPI", ""] }), [...counts, ...counts], true);
  assert.equal(explanation(two), "Stretched: Channel 2 from 312 to 4,020, DAPI from 312 to 4,020. The model sees this.");
  assert.deepEqual(whole(two, [...counts, ...counts]).windows, Array(2).fill({ low: 312, high: 4020 }));
});

test("an ordinary picture becomes samples: three channels, or one where it is grey", () => {
  const pixels = (...values) => ({ width: 2, height: 1, data: Uint8ClampedArray.from(values) });
  assert.deepEqual([...samplesOf(pixels(1, 2, 3, 255, 4, 5, 6, 255))], [1, 4, 2, 5, 3, 6]);
  assert.deepEqual([...samplesOf(pixels(7, 7, 7, 255, 8, 8, 8, 255))], [7, 8]);
});

test("one page is developed to a file of 8 bits", async () => {
  const samples = new Blob([Uint16Array.from({ length: 12 }, (_, at) => 1000 + at)]);
  const { view, file } = await develop(samples, about(1), true);
  assert.deepEqual(view.windows, [{ low: 1000, high: 1011 }]);
  assert.deepEqual(await expanded(view.source), await samples.arrayBuffer());
  const head = new Uint8Array(await file.slice(16, 26).arrayBuffer());
  assert.deepEqual([...head], [0, 0, 0, 4, 0, 0, 0, 3, 8, 0], "4 x 3, 8 bits, grey");
});
