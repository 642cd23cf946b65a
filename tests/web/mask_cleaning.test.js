import assert from "node:assert/strict";
import test from "node:test";

import { area, equal } from "../../src/triton_sam/service/static/js/core/mask.js";
import { cleanMask } from "../../src/triton_sam/service/static/js/core/mask_cleaning.js";
import { bitmapOf, maskOf, randomBitmap, randomNumbers } from "./helpers.js";

const both = (size) => ({ holes: size, islands: size });

test("a hole and an island go, by their sizes", () => {
  const hasHole = (x, y) => x === 5 && (y === 5 || y === 6);
  const speckled = maskOf(bitmapOf(20, 20, (x, y) => (x < 12 && !hasHole(x, y)) || (x === 15 && y > 16)));
  assert.equal(area(cleanMask(speckled, both(2))), 12 * 20 - 2 + 3);
  assert.equal(area(cleanMask(speckled, both(3))), 12 * 20 + 3);
  assert.equal(area(cleanMask(speckled, both(4))), 12 * 20);
  assert.equal(area(cleanMask(speckled, { holes: 0, islands: 4 })), 12 * 20 - 2);
});

test("the same mask comes back if nothing is cleaned, and a cleaned one is kept", () => {
  const disc = maskOf(bitmapOf(30, 30, (x, y) => (x - 15) ** 2 + (y - 15) ** 2 < 50));
  assert.equal(cleanMask(disc, both(64)), disc);
  assert.equal(cleanMask(disc, both(0)), disc);
  const dotted = maskOf(bitmapOf(30, 30, (x, y) => x < 9 || (x === 20 && y === 20)));
  assert.equal(cleanMask(dotted, both(5)), cleanMask(dotted, both(5)));
  assert.notEqual(cleanMask(dotted, both(5)), dotted);
  assert.equal(cleanMask(dotted, both(0)), dotted);
});

test("an object does not vanish, and cleaning again changes nothing", () => {
  const random = randomNumbers(7);
  for (let round = 0; round < 400; round += 1) {
    const mask = maskOf(randomBitmap(random, 20));
    const cleaning = { holes: Math.floor(random() * 40), islands: Math.floor(random() * 40) };
    const cleaned = cleanMask(mask, cleaning);
    assert.equal(area(cleaned) > 0, area(mask) > 0);
    assert.ok(equal(cleanMask({ ...cleaned }, cleaning), cleaned));
  }
});
