import assert from "node:assert/strict";
import test from "node:test";

import { boxBetween, sameBox } from "../../src/triton_sam/service/static/js/core/box.js";
import { addBox, newDocument } from "../../src/triton_sam/service/static/js/core/document.js";
import { foundIn, laidOut, marked, shapeAt, sound } from "../../src/triton_sam/service/static/js/core/grounding.js";

const IMAGE = { width: 100, height: 80 };
const entity = (phrase, start, end, ...boxes) => ({ phrase, start, end, boxes });

test("a box has whole corners within the image, in order, and three pixels at least", () => {
  assert.deepEqual(boxBetween({ x: 50.4, y: 90 }, { x: -3, y: 9.6 }, IMAGE), [0, 10, 50, 80]);
  assert.equal(boxBetween({ x: 10, y: 10 }, { x: 12, y: 50 }, IMAGE), null);
  assert.equal(boxBetween({ x: 200, y: 10 }, { x: 300, y: 50 }, IMAGE), null, "beside the image");
  assert.deepEqual([sameBox([1, 2, 3, 4], [1, 2, 3, 4]), sameBox([1, 2, 3, 4], [1, 2, 3, 5]), sameBox(null, [1, 2, 3, 4])], [true, false, false]);
});

test("an object from a box has the name that it is given, or the usual one", () => {
  const document = addBox(addBox(newDocument(), [0, 0, 9, 9], "a cup"), [1, 1, 9, 9]);
  assert.deepEqual(document.things.map(({ name, box }) => [name, box]), [["a cup", [0, 0, 9, 9]], ["Object 2", [1, 1, 9, 9]]]);
});

test("boxes that make no sense are left out, and the others can be prompts", () => {
  const entities = sound([
    entity(" a cup ", 0, 5, [1, 2, 30, 40], [50, 10, 120, 60]),
    entity("a crumb", 6, 9, [1, 1, 2, 2], [1, 2, 3], [1, 2, 3, "4"], [1, 2, 3, NaN], null),
    entity(" ", 0, 1, [1, 2, 30, 40]),
    { phrase: "nowhere" },
    null,
  ]);
  assert.deepEqual(foundIn(entities, IMAGE), [
    { phrase: "a cup", entity: 0, box: [1, 2, 30, 40] },
    { phrase: "a cup", entity: 0, box: [50, 10, 100, 60] },
  ]);
  for (const other of [null, "text", { phrase: "a" }]) assert.deepEqual(sound(other), []);
});

test("phrases are marked where they stand, and all pieces are the text", () => {
  const text = "a cup on a table";
  const pieces = marked(text, [entity("a table", 9, 16), entity("a cup", 0, 5)]);
  assert.deepEqual(pieces, [
    { text: "a cup", entity: 1 },
    { text: " on ", entity: null },
    { text: "a table", entity: 0 },
  ]);
  assert.deepEqual(marked(text, []), [{ text, entity: null }]);
  assert.deepEqual(marked("", []), []);
});

test("places are characters as Python counts them", () => {
  const text = "👩🏽 ißt 🍕.";
  const [before, pizza, after] = marked(text, [entity("🍕", 7, 8)]);
  assert.deepEqual([before.text, pizza.text, after.text], ["👩🏽 ißt ", "🍕", "."]);
});

test("entities that overlap, or lie beside the text, mark nothing twice and lose nothing", () => {
  const text = "a red cup";
  const marks = (...entities) => {
    const pieces = marked(text, entities);
    assert.equal(pieces.map((piece) => piece.text).join(""), text);
    return pieces.filter((piece) => piece.entity !== null).map((piece) => piece.text);
  };
  assert.deepEqual(marks(entity("red cup", 2, 9), entity("a red", 0, 5)), ["a red"]);
  assert.deepEqual(marks(entity("a", 0, 1), entity("a red cup", 0, 9)), ["a red cup"], "the longer of two that begin together");
  for (const [start, end] of [[-1, 3], [3, 3], [5, 2], [2, 10], [0.5, 3], [undefined, 3]]) assert.deepEqual(marks(entity("x", start, end)), []);
});

// -- on the screen -----------------------------------------------------------------------------------------------

const CANVAS = { width: 200, height: 200 };
const shapes = (boxes, view = { scale: 1, x: 0, y: 0 }) =>
  laidOut(boxes.map((box) => ({ phrase: "x", entity: 0, box })), view, CANVAS, 20, () => 40);
const labelOf = (all, index) => all.find((shape) => shape.index === index).label;

test("a name stands above its box, in it where there is no room, and always on the screen", () => {
  assert.deepEqual(labelOf(shapes([[50, 60, 150, 160]]), 0), { x: 50, y: 40, width: 40, height: 20 });
  assert.equal(labelOf(shapes([[50, 5, 150, 160]]), 0).y, 5);
  assert.equal(labelOf(shapes([[190, 60, 199, 160]]), 0).x, 160);
  const zoomed = { scale: 10, x: -1000, y: -1000 };
  assert.deepEqual(labelOf(shapes([[50, 60, 150, 160]], zoomed), 0), { x: 0, y: 0, width: 40, height: 20 });
  assert.equal(labelOf(shapes([[50, 60, 90, 99]], zoomed), 0), null, "a box that is not to be seen has none");
});

test("frames follow the view", () => {
  const [{ frame }] = shapes([[10, 20, 30, 60]], { scale: 2, x: 5, y: 7 });
  assert.deepEqual(frame, { x: 25, y: 47, width: 40, height: 80 });
});

test("names do not lie on each other, and the smallest box has its own where it belongs", () => {
  const all = shapes([[50, 60, 150, 160], [50, 60, 90, 100], [52, 62, 160, 180]]);
  const tops = [0, 1, 2].map((index) => labelOf(all, index).y);
  assert.equal(tops[1], 40);
  assert.equal(new Set(tops).size, 3);
});

test("a click takes the edge or the name, never the middle, and the smallest first", () => {
  const all = shapes([[20, 60, 180, 180], [60, 60, 120, 120]]);
  assert.equal(shapeAt(all, 100, 160, 5), null, "within the large one");
  assert.equal(shapeAt(all, 90, 90, 5), null, "within both");
  assert.equal(shapeAt(all, 180, 150, 5), 0);
  assert.equal(shapeAt(all, 184, 150, 5), 0);
  assert.equal(shapeAt(all, 186, 150, 5), null);
  assert.equal(shapeAt(all, 90, 61, 5), 1, "an edge of both");
  assert.equal(shapeAt(all, 150, 61, 5), 0);
  assert.equal(shapeAt(all, 70, 45, 5), 1, "its name");
  assert.equal(shapeAt(all, 30, 45, 5), 0);
  assert.equal(shapeAt([], 30, 45, 5), null);
});

test("a name is taken before an edge that lies under it", () => {
  const all = shapes([[20, 60, 180, 180], [30, 20, 50, 50]]);
  assert.equal(shapeAt(all, 40, 48, 5), 0);
});
