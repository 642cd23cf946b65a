/** The messages of a find, and the scales of the sliders for what it found. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { newDocument } from "../../src/triton_sam/service/static/js/core/document.js";
import { foundSoFar, newFinding, withProgress, withResult } from "../../src/triton_sam/service/static/js/core/find_stream.js";
import { addFound, listed, withFilter } from "../../src/triton_sam/service/static/js/core/found.js";
import { STEPS, extents, positionOfScore, positionOfSize, scoreAt, sizeAt } from "../../src/triton_sam/service/static/js/core/found_scales.js";
import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { bitmapOf, drawing, maskOf } from "./helpers.js";

const SIZE = { width: 3, height: 2 };
const MASKS = [maskOf(drawing("#..", "...")), maskOf(drawing("##.", "...")), maskOf(drawing("###", "###"))];
const record = (id, mask, score = 0.9) => ({ id, predicted_iou: score, segmentation: toCocoRle(mask) });
const progress = (done, masks = [], gone = []) => ({ progress: { done, of: 8, masks: 0 }, masks, gone });

test("masks come and go by their ids", () => {
  const first = withProgress(newFinding(SIZE), progress(2, [record(5, MASKS[0]), record(6, MASKS[1])]));
  const second = withProgress(first, progress(4, [record(7, MASKS[2])], [5, 99]));
  assert.deepEqual(foundSoFar(first).map(({ mask }) => mask), [MASKS[0], MASKS[1]]);
  assert.deepEqual(foundSoFar(second).map(({ mask }) => mask), [MASKS[1], MASKS[2]]);
  assert.deepEqual([second.done, second.of], [4, 8]);
  assert.deepEqual(foundSoFar(withProgress(second, { progress: { done: 5, of: 8 } })), foundSoFar(second), "progress alone");
});

test("the final document replaces all: its ids are new, known masks and colours stay the same values", () => {
  const soFar = withProgress(newFinding(SIZE, ["#2f8fff"]), progress(8, [record(5, MASKS[0]), record(6, MASKS[1])]));
  const [, before] = foundSoFar(soFar);
  const result = withResult(soFar, { of: 9, masks: [record(0, MASKS[2]), record(1, MASKS[1], 0.7)] });
  const [fresh, known] = foundSoFar(result);
  assert.equal(known.mask, before.mask);
  assert.equal(known.colour, before.colour);
  assert.equal(known.score, 0.7);
  assert.equal(new Set([fresh.colour, known.colour, "#2f8fff"]).size, 3);
  assert.deepEqual([result.done, result.of], [9, 9]);
  assert.deepEqual(foundSoFar(withResult(soFar, { masks: [] })), []);
});

test("masks of another size, or no masks at all, are errors", () => {
  const other = maskOf(drawing("##", "##"));
  assert.throws(() => withProgress(newFinding(SIZE), progress(1, [record(0, other)])), /2 x 2 pixels/);
  assert.throws(() => withResult(newFinding(SIZE), { masks: [{ id: 0, predicted_iou: 1 }] }), /size/);
});

const discs = [1, 4, 30, 200, 1000].map((size, index) => ({
  mask: maskOf(bitmapOf(50, 40, (x, y) => y * 50 + x < size)),
  score: [0.8123, 0.85, 0.9, 0.95, 0.9876][index],
  colour: "#000000",
}));

test("the ends of the sliders are all, and the best or the largest; all positions come back", () => {
  const document = addFound(newDocument(), discs, null);
  const { score, size } = extents(document);
  const shown = (filter) => listed(withFilter(document, filter)).length;
  assert.equal(shown({ score: scoreAt(score, 0), size: 0 }), 5);
  assert.equal(shown({ score: scoreAt(score, STEPS), size: 0 }), 1);
  assert.equal(shown({ score: 0, size: sizeAt(size, 0) }), 5);
  assert.equal(shown({ score: 0, size: sizeAt(size, STEPS) }), 1);
  assert.equal(sizeAt(size, 50), 31, "half-way by factors: the root of 1 and 1000");
  for (let at = 0; at <= STEPS; at += 1) assert.ok(Math.abs(positionOfScore(score, scoreAt(score, at)) - at) <= 1);
  for (let at = 40; at <= STEPS; at += 1) assert.ok(Math.abs(positionOfSize(size, sizeAt(size, at)) - at) <= 1);
});

test("one object, or values outside of what there is, have a position", () => {
  const document = addFound(newDocument(), [discs[2]], null);
  const { score, size } = extents(document);
  for (const at of [0, 1, STEPS]) {
    assert.equal(listed(withFilter(document, { score: scoreAt(score, at), size: sizeAt(size, at) })).length, 1);
  }
  assert.equal(positionOfScore(score, 0.1), 0);
  assert.equal(positionOfSize({ least: 5, most: 10 }, 99), STEPS);
  assert.equal(positionOfSize({ least: 5, most: 10 }, 1), 0);
  assert.equal(extents(newDocument()), null);
});
