import assert from "node:assert/strict";
import test from "node:test";

import { bounds, emptyMask } from "../../src/triton_sam/service/static/js/core/mask.js";
import * as ops from "../../src/triton_sam/service/static/js/core/mask_ops.js";
import { bitmapOf, drawing, maskOf, randomBitmap, randomBitmapOf, randomNumbers, runsOf } from "./helpers.js";

test("union and subtract are those of the bitmaps, in canonical runs", () => {
  const random = randomNumbers(3);
  for (let round = 0; round < 500; round += 1) {
    const a = randomBitmap(random);
    const b = randomBitmapOf(random, a.width, a.height);
    const both = (choose) =>
      runsOf({ ...a, data: a.data.map((value, index) => (choose(value, b.data[index]) ? 1 : 0)) });
    assert.deepEqual([...ops.union(maskOf(a), maskOf(b)).runs], both((inA, inB) => inA || inB));
    assert.deepEqual([...ops.subtract(maskOf(a), maskOf(b)).runs], both((inA, inB) => inA && !inB));
  }
});

test("masks of different sizes are not combined", () => {
  assert.throws(() => ops.union(emptyMask(2, 3), emptyMask(3, 2)), /2 x 3 and 3 x 2/);
  assert.throws(() => ops.subtract(emptyMask(2, 3), emptyMask(2, 4)), /do not combine/);
});

test("a column's spans are its pixels, none touching the next, and are made once", () => {
  const random = randomNumbers(4);
  for (let round = 0; round < 500; round += 1) {
    const bitmap = randomBitmap(random);
    const mask = maskOf(bitmap);
    const { offsets, spans } = ops.columnSpans(mask);
    assert.equal(ops.columnSpans(mask).spans, spans);
    const { firstColumn, pastLastColumn } = ops.columnSpans(mask);
    const box = bounds(mask) ?? { x: 0, width: 0 };
    assert.deepEqual([firstColumn, pastLastColumn], [box.x, box.x + box.width]);
    assert.equal(offsets.length, bitmap.width + 1);
    assert.equal(2 * offsets[bitmap.width], spans.length);
    const seen = new Uint8Array(bitmap.data.length);
    for (let x = 0; x < bitmap.width; x += 1) {
      for (let index = offsets[x]; index < offsets[x + 1]; index += 1) {
        assert.ok(spans[2 * index] < spans[2 * index + 1]);
        if (index > offsets[x]) assert.ok(spans[2 * index] > spans[2 * index - 1]);
        for (let y = spans[2 * index]; y < spans[2 * index + 1]; y += 1) seen[y * bitmap.width + x] = 1;
      }
    }
    assert.deepEqual(seen, bitmap.data);
  }
});

test("a bitmap is any crop, also one that reaches out of the image", () => {
  const random = randomNumbers(5);
  for (let round = 0; round < 500; round += 1) {
    const bitmap = randomBitmap(random);
    const mask = maskOf(bitmap);
    const whole = (low, high) => low + Math.floor(random() * (high - low));
    const given = { x: whole(-4, 12), y: whole(-4, 12), width: whole(0, 12), height: whole(0, 12) };
    const box = round % 2 ? given : (bounds(mask) ?? { x: 0, y: 0, width: 0, height: 0 });
    const crop = bitmapOf(box.width, box.height, (column, row) => {
      const [x, y] = [column + box.x, row + box.y];
      const isInImage = x >= 0 && y >= 0 && x < bitmap.width && y < bitmap.height;
      return isInImage && bitmap.data[y * bitmap.width + x] === 1;
    });
    assert.deepEqual(ops.toBitmap(mask, round % 2 ? given : undefined), { ...box, data: crop.data });
  }
});

/** Whether (x, y) is within the radius of the segment, by products only, so exact for halves of pixels. */
function isNear(x, y, from, to, radius) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const nearPoint = (point) => (x - point.x) ** 2 + (y - point.y) ** 2 <= radius ** 2;
  const isBeside = (x - from.x) * dx + (y - from.y) * dy >= 0 && (x - to.x) * dx + (y - to.y) * dy <= 0;
  const cross = dx * (y - from.y) - dy * (x - from.x);
  const nearLine = (dx !== 0 || dy !== 0) && isBeside && cross ** 2 <= radius ** 2 * (dx ** 2 + dy ** 2);
  return nearPoint(from) || nearPoint(to) || nearLine;
}

function brush(width, height, points, radius) {
  return bitmapOf(width, height, (x, y) =>
    points.some(
      (point, index) =>
        (Math.floor(point.x) === x && Math.floor(point.y) === y) ||
        isNear(x + 0.5, y + 0.5, points[Math.max(0, index - 1)], point, radius),
    ),
  );
}

test("a stroke covers the pixels whose centres are near its line", () => {
  const random = randomNumbers(6);
  for (let round = 0; round < 600; round += 1) {
    const [width, height] = [1 + Math.floor(random() * 24), 1 + Math.floor(random() * 24)];
    const point = () => ({ x: random() * (width + 10) - 5, y: random() * (height + 10) - 5 });
    const points = Array.from({ length: Math.floor(random() * 6) }, point);
    if (random() < 0.3 && points.length > 1) points[1] = { x: points[0].x, y: points[1].y };
    if (random() < 0.3 && points.length > 2) points[2] = { ...points[1] };
    const radius = random() * random() * 9;
    const mask = ops.strokeMask(width, height, points, radius);
    const expected = points.length ? runsOf(brush(width, height, points, radius)) : [width * height];
    assert.deepEqual([...mask.runs], expected, JSON.stringify({ width, height, points, radius }));
  }
});

test("a pixel whose centre lies exactly on a stroke's border belongs to it", () => {
  const random = randomNumbers(8);
  const half = (most) => Math.floor(random() * 2 * most) / 2;
  for (let round = 0; round < 1000; round += 1) {
    const from = { x: half(20), y: half(20) };
    const other = { x: half(20), y: half(20) };
    const to = [from, { ...other, y: from.y }, { ...other, x: from.x }, other][round % 4];
    const radius = half(8);
    const mask = ops.strokeMask(20, 20, [from, to], radius);
    const expected = runsOf(brush(20, 20, [from, to], radius));
    assert.deepEqual([...mask.runs], expected, JSON.stringify([from, to, radius]));
  }
});

test("the finest brush marks the pixel under it, and one outside the image nothing", () => {
  const isAt = (column, row) => runsOf(bitmapOf(5, 4, (x, y) => x === column && y === row));
  assert.deepEqual([...ops.strokeMask(5, 4, [{ x: 2, y: 1 }], 0).runs], isAt(2, 1));
  assert.deepEqual([...ops.strokeMask(5, 4, [{ x: 2.99, y: 3.99 }], 0.3).runs], isAt(2, 3));
  assert.deepEqual([...ops.strokeMask(5, 4, [{ x: 9, y: -3 }], 2).runs], [20]);
  assert.deepEqual([...ops.strokeMask(5, 4, [{ x: 2, y: 2 }], 100).runs], [0, 20]);
  assert.throws(() => ops.strokeMask(5, 4, [{ x: Number.NaN, y: 2 }], 1), /brush stroke/);
  assert.throws(() => ops.strokeMask(5, 4, [{ x: 1, y: 2 }], -1), /brush stroke/);
});

test("operations leave their masks as they were", () => {
  const [a, b] = [maskOf(drawing("#.#", "##.")), maskOf(drawing("..#", "#.."))];
  const before = structuredClone([a, b]);
  ops.union(a, b);
  ops.subtract(a, b);
  ops.toBitmap(a).data.fill(7);
  assert.deepEqual([a, b], before);
});
