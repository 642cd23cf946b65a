/** Objects with an imported mask, and what clicks do to them. */
import assert from "node:assert/strict";
import { test } from "node:test";

import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import { newHistory, step, undo } from "../../src/triton_sam/service/static/js/core/history.js";
import { packed, unpacked } from "../../src/triton_sam/service/static/js/core/history_packing.js";
import { answered, point } from "./document_helpers.js";
import { bitmapOfMask, drawing, maskOf } from "./helpers.js";

const BASE = maskOf(drawing("###...", "###...", "###..."));
const shown = (document) => {
  const { width, data } = bitmapOfMask(documents.maskOf(documents.activeThing(document)));
  return Array.from({ length: data.length / width }, (_, y) => [...data.slice(y * width, (y + 1) * width)].map((bit) => ".#"[bit]).join(""));
};
const imported = () => documents.activate(documents.addImported(documents.newDocument(), [{ classId: null, mask: BASE }]), "object-1");
const promptOf = (document) => documents.promptOf(documents.activeThing(document));

test("imported objects are added in one step: masks stay, boxes wait for the model", () => {
  const before = documents.addPoint(documents.newDocument(), point(1, 2));
  const after = documents.addImported(before, [
    { classId: "class-2", mask: BASE, colour: "#00ff00", name: "left" },
    { classId: null, box: [1, 1, 4, 3] },
  ]);
  assert.deepEqual(after.things.map(({ id, name }) => [id, name]), [["object-1", "Object 1"], ["object-2", "left"], ["object-3", "Object 3"]]);
  assert.deepEqual(after.things.slice(1).map(documents.isWaiting), [false, true]);
  assert.equal(documents.maskOf(after.things[1]), BASE);
  assert.deepEqual(documents.promptOf(after.things[2]), { multimask: false, format: "rle", box: [1, 1, 4, 3] });
  assert.equal(after.activeId, null);
  assert.notEqual(after.things[2].colour, after.things[0].colour);
  assert.equal(undo(step(newHistory(before), after)).present, before);
  assert.equal(documents.addImported(before, []), before);
});

test("a click adds what the model finds there, and the mask stays", () => {
  const clicked = documents.addPoint(imported(), point(5, 1));
  assert.deepEqual(promptOf(clicked), { multimask: true, format: "rle", points: [[5, 1]], labels: [1] });
  assert.deepEqual(shown(clicked), ["###...", "###...", "###..."], "until the answer is there");
  assert.deepEqual(shown(answered(clicked, [maskOf(drawing("......", "..####", "......"))])), ["###...", "######", "###..."]);
});

test("a negative click takes away what the model finds there", () => {
  const clicked = documents.addPoint(imported(), point(0, 0, 0));
  assert.deepEqual(promptOf(clicked), { multimask: true, format: "rle", points: [[0, 0]], labels: [1] }, "it is asked for as an object");
  const cut = answered(clicked, [maskOf(drawing("##....", "......", "......"))]);
  assert.deepEqual(shown(cut), ["..#...", "###...", "###..."]);
  const kept = documents.addPoint(cut, point(1, 0));
  assert.deepEqual(promptOf(kept), { multimask: false, format: "rle", points: [[0, 0], [1, 0]], labels: [1, 0] }, "a click on the mask refines the cut");
});

test("a click elsewhere begins the next part, and what is there so far stays", () => {
  const cut = answered(documents.addPoint(imported(), point(0, 0, 0)), [maskOf(drawing("##....", "......", "......"))]);
  const clicked = documents.addPoint(cut, point(5, 2));
  assert.deepEqual(promptOf(clicked).points, [[5, 2]]);
  const both = answered(clicked, [maskOf(drawing("......", "......", "....##"))]);
  assert.deepEqual(shown(both), ["..#...", "###...", "###.##"]);
  const third = documents.addPoint(both, point(1, 1, 0));
  assert.deepEqual(promptOf(third), { multimask: true, format: "rle", points: [[1, 1]], labels: [1] });
  assert.deepEqual(shown(third), ["..#...", "###...", "###.##"]);
});

test("a click that comes before the answer to the last refines that one: nothing is lost", () => {
  const waiting = documents.addPoint(imported(), point(5, 1));
  const next = documents.addPoint(waiting, point(0, 0, 0));
  assert.deepEqual(promptOf(next).points, [[5, 1], [0, 0]]);
  assert.deepEqual(promptOf(next).labels, [1, 0]);
});

test("brush and eraser work on an imported mask, and clicks after them", () => {
  const painted = documents.paint(imported(), maskOf(drawing("...#..", "......", "......")), false);
  const erased = documents.paint(painted, maskOf(drawing("......", "......", "###...")), true);
  assert.deepEqual(shown(erased), ["####..", "###...", "......"]);
  assert.equal(documents.isWaiting(documents.activeThing(erased)), false);
});

test("an imported mask is stored once and comes back", () => {
  const history = step(newHistory(documents.newDocument()), imported());
  const masks = [];
  const stored = structuredClone(packed(history, (mask) => masks.push(mask) - 1));
  assert.equal(masks.length, 1);
  assert.deepEqual(unpacked(stored, (id) => masks[id]), history);
});
