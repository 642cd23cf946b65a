import assert from "node:assert/strict";
import test from "node:test";

import * as masks from "../../src/triton_sam/service/static/js/core/mask.js";
import { drawing, maskOf, packRuns, randomBitmap, randomNumbers, runsOf } from "./helpers.js";

test("a random mask survives COCO's text, and its text is the reference's", () => {
  const random = randomNumbers(1);
  for (let round = 0; round < 500; round += 1) {
    const bitmap = randomBitmap(random);
    const document = { size: [bitmap.height, bitmap.width], counts: packRuns(runsOf(bitmap)) };
    const mask = masks.fromCocoRle(document);
    assert.deepEqual([...mask.runs], runsOf(bitmap));
    assert.deepEqual(masks.toCocoRle(mask), document);
  }
});

test("area, bounds and single pixels are those of the bitmap", () => {
  const random = randomNumbers(2);
  for (let round = 0; round < 500; round += 1) {
    const { width, height, data } = randomBitmap(random);
    const mask = maskOf({ width, height, data });
    const [columns, rows] = [[], []];
    for (let y = -1; y <= height; y += 1) {
      for (let x = -1; x <= width; x += 1) {
        const isInside = x >= 0 && y >= 0 && x < width && y < height;
        const isSet = isInside && data[y * width + x] === 1;
        if (isSet) columns.push(x);
        if (isSet) rows.push(y);
        assert.equal(masks.contains(mask, x, y), isSet);
        assert.equal(masks.contains(mask, x + 0.99, y + 0.5), isSet);
      }
    }
    assert.equal(masks.area(mask), columns.length);
    const [x, y] = [Math.min(...columns), Math.min(...rows)];
    const box = { x, y, width: Math.max(...columns) + 1 - x, height: Math.max(...rows) + 1 - y };
    assert.deepEqual(masks.bounds(mask), columns.length ? box : null);
  }
});

test("counts beyond 31 bits are read and written", () => {
  const examples = [
    [[20000, 20000], [200000000, 100000000, 100000000]],
    [[20000, 20000], [1, 399999996, 1, 1, 1]],
    [[20000, 20000], [0, 1, 399999990, 1, 7, 1]],
    [[65535, 65537], [0, 1, 4294967290, 1, 1, 1, 1]],
    [[65535, 65537], [1, 1, 1, 1, 4294967290, 1]],
    [[65535, 65537], [4294967295]],
  ];
  for (const [size, runs] of examples) {
    const document = { size, counts: packRuns(runs) };
    const mask = masks.fromCocoRle(document);
    assert.deepEqual([...mask.runs], runs);
    assert.deepEqual(masks.toCocoRle(mask), document);
  }
});

test("empty runs of other writers are merged away", () => {
  const examples = [
    [[5, 0, 3, 1], [8, 1]],
    [[0, 0, 9], [9]],
    [[0, 4, 0, 5], [0, 9]],
    [[0, 0, 0, 4, 5, 0], [0, 4, 5]],
    [[9, 0], [9]],
  ];
  for (const [written, canonical] of examples) {
    const mask = masks.fromCocoRle({ size: [3, 3], counts: packRuns(written) });
    assert.deepEqual([...mask.runs], canonical);
  }
});

test("what is no mask is refused with one sentence", () => {
  const right = packRuns([4, 5]);
  const documents = [
    null,
    {},
    { size: [3, 3] },
    { size: [3, 3], counts: [4, 5] },
    { size: [3], counts: right },
    { size: [3, 2.5], counts: right },
    { size: [0, 3], counts: "" },
    { size: [-3, -3], counts: right },
    { size: ["3", "3"], counts: right },
    { size: [70000, 70000], counts: packRuns([4900000000]) },
    { size: [3, 3], counts: "" },
    { size: [3, 3], counts: right + "p" },
    { size: [3, 3], counts: "/" },
    { size: [3, 3], counts: "4€" },
    { size: [3, 3], counts: packRuns([4, 6]) },
    { size: [3, 3], counts: packRuns([4, 4]) },
    { size: [3, 3], counts: packRuns([12, -3]) },
    { size: [3, 3], counts: packRuns([4, 5]) + "P" },
    { size: [3, 3], counts: "o".repeat(50) + "0" },
  ];
  for (const document of documents) {
    assert.throws(() => masks.fromCocoRle(document), /^Error: [A-Z].*\.$/, JSON.stringify(document));
  }
});

test("an empty mask has one run, and a mask is kept by structuredClone", () => {
  assert.deepEqual([...masks.emptyMask(3, 2).runs], [6]);
  assert.throws(() => masks.emptyMask(0, 2), /whole sides/);
  const mask = maskOf(drawing("#.", ".#"));
  assert.deepEqual(structuredClone(mask), mask);
});

test("masks are equal by size and pixels", () => {
  const mask = maskOf(drawing("#.", ".#"));
  assert.ok(masks.equal(mask, maskOf(drawing("#.", ".#"))));
  assert.ok(!masks.equal(mask, maskOf(drawing("#.", "##"))));
  assert.ok(!masks.equal(mask, maskOf(drawing(".#", "#."))));
  assert.ok(!masks.equal(masks.emptyMask(3, 2), masks.emptyMask(2, 3)));
});
