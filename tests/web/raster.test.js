import assert from "node:assert/strict";
import test from "node:test";

import { bitmapOf, drawing, maskOf, oneOf, randomBitmap, randomNumbers } from "./helpers.js";

globalThis.ImageData = class {
  constructor(width, height) {
    Object.assign(this, { width, height, data: new Uint8ClampedArray(4 * width * height) });
  }
};
const { Raster, union } = await import("../../src/triton_sam/service/static/js/draw/raster.js");

const COLOUR = [10, 20, 30];
const FILLED = [...COLOUR, 128];
const LINE = [...COLOUR, 255];
const NOTHING = [0, 0, 0, 0];
const filled = { colour: COLOUR, fill: 0.5, line: 0 };

const whole = (random, low, high) => low + Math.floor(random() * (high - low));
const pixelOf = ({ image, width }, x, y) => [...image.data.subarray(4 * (y * width + x), 4 * (y * width + x) + 4)];

/** Any view: whole and crooked scales, whole offsets as the page has them and others. */
function randomView(random) {
  const scale = random() < 0.5 ? oneOf(random, [0.25, 0.5, 1, 1, 1.5, 2, 3, 8]) : 0.1 * 60 ** random();
  const offset = () => (random() < 0.7 ? whole(random, -30, 20) : whole(random, -120, 80) / 4);
  return { scale, x: offset(), y: offset() };
}

/** Which pixels of the screen show an image's pixel, and which of them the mask's. */
function bruteForce(screen, bitmap, view) {
  const pixelUnder = (place, offset) => Math.floor((place + 0.5 - offset) / view.scale);
  const isImage = bitmapOf(screen.width, screen.height, (sx, sy) => {
    const [x, y] = [pixelUnder(sx, view.x), pixelUnder(sy, view.y)];
    return x >= 0 && y >= 0 && x < bitmap.width && y < bitmap.height;
  });
  const isMask = bitmapOf(screen.width, screen.height, (sx, sy) => {
    if (!isImage.data[sy * screen.width + sx]) return false;
    return bitmap.data[pixelUnder(sy, view.y) * bitmap.width + pixelUnder(sx, view.x)] === 1;
  });
  return { isImage, isMask };
}

function boundsOf({ width, height, data }) {
  let box = null;
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      if (data[y * width + x]) box = union(box, { x0: x, y0: y, x1: x + 1, y1: y + 1 });
    }
  }
  return box;
}

/** Border: a pixel of the image and the screen that is not the mask's, so near in the row or in the column. */
function hasEdgeWithin({ isImage, isMask }, x, y, line) {
  const { width, height } = isImage;
  for (let by = 1; by <= line; by += 1) {
    for (const [sx, sy] of [[x - by, y], [x + by, y], [x, y - by], [x, y + by]]) {
      if (sx < 0 || sy < 0 || sx >= width || sy >= height || !isImage.data[sy * width + sx]) continue;
      if (!isMask.data[sy * width + sx]) return true;
    }
  }
  return false;
}

function assertOutline(raster, truth, line, hint) {
  const { width, height } = raster;
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const isMask = truth.isMask.data[y * width + x] === 1;
      const expected = !isMask ? NOTHING : hasEdgeWithin(truth, x, y, line) ? LINE : FILLED;
      assert.deepEqual(pixelOf(raster, x, y), expected, `${hint}, pixel ${x}, ${y}`);
    }
  }
}

test("a pixel of the screen is covered if and only if the mask has the pixel under its middle", () => {
  const random = randomNumbers(51);
  for (let round = 0; round < 600; round += 1) {
    const bitmap = randomBitmap(random);
    const view = randomView(random);
    const raster = new Raster(whole(random, 1, 30), whole(random, 1, 30));
    const { isMask } = bruteForce(raster, bitmap, view);
    const box = raster.paint(maskOf(bitmap), view, filled);
    const hint = JSON.stringify({ round, view, width: raster.width, height: raster.height });
    assert.deepEqual(box, boundsOf(isMask), hint);
    assert.deepEqual(raster.dirty, box, hint);
    const covered = bitmapOf(raster.width, raster.height, (x, y) => {
      const pixel = pixelOf(raster, x, y).join();
      assert.ok(pixel === FILLED.join() || pixel === NOTHING.join(), hint);
      return pixel === FILLED.join();
    });
    assert.deepEqual(covered.data, isMask.data, hint);
  }
});

test("at 1:1 the screen is exactly the mask, and at 2:1 each of its pixels is four", () => {
  const mask = maskOf(drawing("#.#", ".#."));
  const rows = (raster) =>
    Array.from({ length: raster.height }, (_, y) =>
      Array.from({ length: raster.width }, (_, x) => (pixelOf(raster, x, y)[3] ? "#" : ".")).join(""));
  const once = new Raster(4, 3);
  once.paint(mask, { scale: 1, x: 0, y: 0 }, filled);
  assert.deepEqual(rows(once), ["#.#.", ".#..", "...."]);
  const twice = new Raster(6, 4);
  twice.paint(mask, { scale: 2, x: 0, y: 0 }, filled);
  assert.deepEqual(rows(twice), ["##..##", "##..##", "..##..", "..##.."]);
});

test("an outline of one pixel lies where a neighbour in the image and on the screen is not the mask's", () => {
  const random = randomNumbers(52);
  for (let round = 0; round < 200; round += 1) {
    const bitmap = randomBitmap(random);
    const view = randomView(random);
    const raster = new Raster(whole(random, 1, 25), whole(random, 1, 25));
    raster.paint(maskOf(bitmap), view, { ...filled, line: 1 });
    assertOutline(raster, bruteForce(raster, bitmap, view), 1, JSON.stringify({ round, view }));
  }
});

test("a thick outline of a disc is as thick as it was wanted, and open where the disc leaves image or screen", () => {
  const random = randomNumbers(53);
  for (let round = 0; round < 100; round += 1) {
    const [x0, y0, radius] = [random() * 30, random() * 30, random() * 18];
    const bitmap = bitmapOf(30, 28, (x, y) => Math.hypot(x + 0.5 - x0, y + 0.5 - y0) < radius);
    const view = { ...randomView(random), scale: oneOf(random, [0.5, 1, 1, 2]) };
    const line = whole(random, 2, 5);
    const raster = new Raster(32, 30);
    raster.paint(maskOf(bitmap), view, { ...filled, line });
    assertOutline(raster, bruteForce(raster, bitmap, view), line, JSON.stringify({ round, view, line }));
  }
});

test("a thick outline lies at a gap that is thinner than itself", () => {
  const bitmap = drawing("#########", "#########", "#########", "####.####", "#########", "#########", "#########");
  const view = { scale: 1, x: 0, y: 0 };
  const raster = new Raster(9, 7);
  raster.paint(maskOf(bitmap), view, { ...filled, line: 2 });
  assertOutline(raster, bruteForce(raster, bitmap, view), 2, "one pixel is open");
});

test("an outline of any width covers every pixel so near to a gap, whatever the mask", () => {
  const random = randomNumbers(55);
  for (let round = 0; round < 200; round += 1) {
    const bitmap = randomBitmap(random, 20);
    const view = randomView(random);
    const line = whole(random, 2, 7);
    const raster = new Raster(whole(random, 1, 25), whole(random, 1, 25));
    raster.paint(maskOf(bitmap), view, { ...filled, line });
    assertOutline(raster, bruteForce(raster, bitmap, view), line, JSON.stringify({ round, view, line }));
  }
});

test("without a fill the outline alone is painted, over what is there", () => {
  const raster = new Raster(3, 3);
  const view = { scale: 1, x: -1, y: -1 };
  const ring = maskOf(drawing(".....", ".###.", ".###.", ".###.", "....."));
  const under = maskOf(drawing("#####", "#####", "#####", "#####", "#####"));
  raster.paint(under, view, { colour: [1, 2, 3], fill: 1, line: 0 });
  raster.paint(ring, { ...view, x: 0, y: 0 }, { colour: COLOUR, fill: 0, line: 1 });
  assert.deepEqual(pixelOf(raster, 0, 0), [1, 2, 3, 255]);
  assert.deepEqual(pixelOf(raster, 1, 1), LINE);
  assert.deepEqual(pixelOf(raster, 2, 2), [1, 2, 3, 255]);
});

test("a later mask lies over an earlier one", () => {
  const raster = new Raster(2, 1);
  const view = { scale: 1, x: 0, y: 0 };
  raster.paint(maskOf(drawing("##")), view, filled);
  raster.paint(maskOf(drawing(".#")), view, { colour: [200, 100, 50], fill: 1, line: 0 });
  assert.deepEqual([pixelOf(raster, 0, 0), pixelOf(raster, 1, 0)], [FILLED, [200, 100, 50, 255]]);
});

test("all that was painted lies in the dirty box, and clearing it leaves nothing", () => {
  const random = randomNumbers(54);
  const raster = new Raster(24, 20);
  for (let round = 0; round < 300; round += 1) {
    const boxes = Array.from({ length: whole(random, 0, 4) }, () =>
      raster.paint(maskOf(randomBitmap(random)), randomView(random), { ...filled, line: whole(random, 0, 3) }));
    const painted = bitmapOf(24, 20, (x, y) => pixelOf(raster, x, y)[3] > 0);
    assert.deepEqual(raster.dirty, boundsOf(painted));
    assert.deepEqual(raster.dirty, boxes.reduce(union, null));
    assert.deepEqual(raster.clear(), boundsOf(painted));
    assert.ok(raster.image.data.every((value) => value === 0));
    assert.equal(raster.dirty, null);
    assert.equal(raster.clear(), null);
  }
});

test("a mask beside the screen paints nothing, and an empty one neither", () => {
  const raster = new Raster(5, 5);
  const full = maskOf(drawing("##", "##"));
  for (const [x, y] of [[-2, 0], [5, 0], [0, -2], [0, 5], [-1e7, -1e7]]) {
    assert.equal(raster.paint(full, { scale: 1, x, y }, filled), null);
  }
  assert.equal(raster.paint(maskOf(drawing("..", "..")), { scale: 2, x: 0, y: 0 }, filled), null);
  assert.equal(raster.dirty, null);
});

test("a box with none is itself", () => {
  const box = { x0: 1, y0: 2, x1: 3, y1: 4 };
  assert.equal(union(box, null), box);
  assert.equal(union(null, box), box);
  assert.equal(union(null, null), null);
  assert.deepEqual(union(box, { x0: 0, y0: 3, x1: 2, y1: 9 }), { x0: 0, y0: 2, x1: 3, y1: 9 });
});
