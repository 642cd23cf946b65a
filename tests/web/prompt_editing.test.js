import assert from "node:assert/strict";
import test from "node:test";

import { addBox, addPoint, maskOf, newDocument, paint, promptOf } from "../../src/triton_sam/service/static/js/core/document.js";
import { moveBox, movePoint, removePoint } from "../../src/triton_sam/service/static/js/core/prompt_editing.js";
import { equal } from "../../src/triton_sam/service/static/js/core/mask.js";
import { strokeMask } from "../../src/triton_sam/service/static/js/core/mask_ops.js";

const at = (x, y, label = 1) => ({ x, y, label });
const clicked = (...points) => points.reduce(addPoint, newDocument());
const ID = "object-1";
const pointsOf = (document) => document.things[0].points;

test("a moved point keeps its place among the others and its sign", () => {
  const before = clicked(at(1, 2), at(3, 4, 0), at(5, 6));
  const after = movePoint(before, ID, 1, { x: 7, y: 8 });
  assert.deepEqual(pointsOf(after), [at(1, 2), at(7, 8, 0), at(5, 6)]);
  assert.deepEqual(pointsOf(before)[1], at(3, 4, 0), "documents do not change");
  assert.equal(movePoint(before, ID, 1, { x: 3, y: 4 }), before, "no step for a point that stays");
  assert.equal(movePoint(before, ID, 9, { x: 3, y: 4 }), before);
});

test("a removed point is gone from the prompt", () => {
  const after = removePoint(clicked(at(1, 2), at(3, 4, 0), at(5, 6)), ID, 0);
  assert.deepEqual(promptOf(after.things[0]).points, [[3, 4], [5, 6]]);
  assert.deepEqual(promptOf(after.things[0]).labels, [0, 1]);
  assert.equal(removePoint(after, ID, 2), after);
});

test("with the last point that adds, the object goes", () => {
  assert.equal(removePoint(clicked(at(1, 2)), ID, 0).things.length, 0);
  assert.equal(removePoint(clicked(at(1, 2), at(3, 4, 0)), ID, 0).things.length, 0);
  assert.equal(removePoint(clicked(at(1, 2)), ID, 0).activeId, null);
});

test("what was painted stays, without the model's mask", () => {
  const stroke = strokeMask(20, 20, [{ x: 10, y: 10 }], 3);
  const painted = paint(clicked(at(1, 2), at(3, 4, 0)), stroke, false);
  const [thing] = removePoint(painted, ID, 0).things;
  assert.deepEqual(thing.points, []);
  assert.equal(thing.answer, null);
  assert.ok(equal(maskOf(thing), stroke));
});

test("points around a box may all go", () => {
  const boxed = addPoint(addBox(newDocument(), [1, 1, 9, 9]), at(3, 3, 0));
  const [thing] = removePoint(boxed, ID, 0).things;
  assert.deepEqual([thing.points, thing.box], [[], [1, 1, 9, 9]]);
});

test("a box moves", () => {
  const boxed = addBox(newDocument(), [1, 1, 9, 9]);
  assert.deepEqual(moveBox(boxed, ID, [1, 1, 9, 12]).things[0].box, [1, 1, 9, 12]);
  assert.equal(moveBox(boxed, ID, [1, 1, 9, 9]), boxed);
});
