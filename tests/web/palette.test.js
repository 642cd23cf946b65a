import assert from "node:assert/strict";
import test from "node:test";

import { nextColour, rgb } from "../../src/triton_sam/service/static/js/core/palette.js";

/** The colours of so many objects, one after the other. */
function coloursOf(count) {
  const colours = [];
  while (colours.length < count) colours.push(nextColour(colours));
  return colours;
}

test("thirty objects have thirty colours, and then they come round again in the same order", () => {
  const colours = coloursOf(60);
  const first = colours.slice(0, 30);
  assert.equal(first[0], "#2f8fff");
  assert.equal(new Set(first).size, 30);
  assert.deepEqual(colours, [...first, ...first]);
  for (const colour of first) assert.match(colour, /^#[0-9a-f]{6}$/);
});

test("the colour of a deleted object is given to the next one", () => {
  const colours = coloursOf(10);
  for (const colour of colours) assert.equal(nextColour(colours.filter((other) => other !== colour)), colour);
});

test("a colour that a person mixed is not counted", () => {
  assert.equal(nextColour(["#123456", "#123456", "#FFFFFF"]), coloursOf(1)[0]);
});

test("a colour's red, green and blue are its hexadecimal pairs", () => {
  const examples = [
    ["#000000", [0, 0, 0]],
    ["#ffffff", [255, 255, 255]],
    ["#FF8001", [255, 128, 1]],
    ["#010203", [1, 2, 3]],
  ];
  for (const [colour, numbers] of examples) assert.deepEqual(rgb(colour), numbers);
});
