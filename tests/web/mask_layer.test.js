import assert from "node:assert/strict";
import test from "node:test";

import { maskOf, oneOf, randomBitmapOf, randomNumbers } from "./helpers.js";

globalThis.ImageData = class {
  constructor(width, height) {
    Object.assign(this, { width, height, data: new Uint8ClampedArray(4 * width * height) });
  }
};
const { MaskLayer } = await import("../../src/triton_sam/service/static/js/draw/mask_layer.js");
const { Raster } = await import("../../src/triton_sam/service/static/js/draw/raster.js");

const SIZE = [37, 29];
const COLOURS = [[255, 0, 0], [0, 255, 0], [0, 0, 255]];

function randomEntry(random) {
  const mask = maskOf(randomBitmapOf(random, 20, 16));
  return { mask, look: { colour: oneOf(random, COLOURS), fill: oneOf(random, [0, 0.5, 1]), line: oneOf(random, [0, 1, 2]) } };
}

/** Another list: one entry more, less, replaced, moved or coloured anew, or nothing. */
function changed(entries, random) {
  const at = Math.floor(random() * (entries.length + 1));
  const other = randomEntry(random);
  const copies = entries.map(({ mask, look }) => ({ mask, look: { ...look, colour: [...look.colour] } }));
  return oneOf(random, [
    () => copies,
    () => copies.toSpliced(at, 0, other),
    () => copies.toSpliced(at, 1),
    () => copies.toSpliced(at, 1, other),
    () => copies.toReversed(),
    () => copies.map((entry, index) => (index === at ? { ...entry, look: other.look } : entry)),
  ])();
}

test("after any change the pixels are those of a fresh drawing, and what has changed is told", () => {
  const random = randomNumbers(3);
  for (let round = 0; round < 60; round += 1) {
    const view = { scale: oneOf(random, [0.5, 1, 1.7, 3]), x: Math.floor(random() * 20) - 10, y: Math.floor(random() * 20) - 10 };
    const layer = new MaskLayer(new Raster(...SIZE));
    let entries = Array.from({ length: 3 }, () => randomEntry(random));
    layer.draw(entries, view);
    for (let step = 0; step < 12; step += 1) {
      entries = changed(entries, random);
      const before = layer.raster.image.data.slice();
      const box = layer.draw(entries, random() < 0.9 ? view : { ...view });
      const fresh = new MaskLayer(new Raster(...SIZE));
      fresh.draw(entries, view);
      assert.deepEqual(layer.raster.image.data, fresh.raster.image.data);
      const isIn = (x, y) => box !== null && x >= box.x0 && x < box.x1 && y >= box.y0 && y < box.y1;
      layer.raster.image.data.forEach((value, at) => {
        const pixel = Math.floor(at / 4);
        if (value !== before[at]) assert.ok(isIn(pixel % SIZE[0], Math.floor(pixel / SIZE[0])), "outside the box that was told");
      });
    }
  }
});

test("an unchanged drawing costs nothing, and one object costs itself", () => {
  const random = randomNumbers(4);
  const layer = new MaskLayer(new Raster(...SIZE));
  const entries = Array.from({ length: 5 }, () => randomEntry(random));
  const view = { scale: 1, x: 0, y: 0 };
  layer.draw(entries, view);
  layer.raster.paint = () => assert.fail("painted for nothing");
  assert.equal(layer.draw([...entries], { ...view }), null);
});
