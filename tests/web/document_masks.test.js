import assert from "node:assert/strict";
import test from "node:test";

import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import { answered, oneClick, point } from "./document_helpers.js";
import { bitmapOf, bitmapOfMask, drawing, maskOf, oneOf, randomBitmapOf, randomNumbers } from "./helpers.js";

const seen = (document) => bitmapOfMask(documents.maskOf(documents.activeThing(document))).data;

test("a mask is null while there is nothing, and where all was erased it is empty", () => {
  const clicked = oneClick();
  assert.equal(documents.maskOf(documents.activeThing(clicked)), null);
  const document = answered(clicked, [maskOf(drawing("##"))]);
  assert.deepEqual(seen(document), drawing("##").data);
  const erased = documents.paint(document, maskOf(drawing("##")), true);
  assert.deepEqual(seen(erased), drawing("..").data);
});

test("what is erased while a mask is on its way is gone when it comes", () => {
  const erased = documents.paint(oneClick(), maskOf(drawing("#.")), true);
  assert.deepEqual(seen(answered(erased, [maskOf(drawing("##"))])), drawing(".#").data);
});

test("a stroke that changes nothing that is seen is no step", () => {
  const document = answered(oneClick(), [maskOf(drawing("##.."))]);
  for (const [rows, erases] of [["##..", false], [".#..", false], ["..##", true], ["...#", true]]) {
    assert.equal(documents.paint(document, maskOf(drawing(rows)), erases), document, `${rows} ${erases}`);
  }
  const painted = documents.paint(document, maskOf(drawing(".##.")), false);
  assert.deepEqual(seen(painted), drawing("###.").data);
  assert.equal(documents.paint(painted, maskOf(drawing(".##.")), false), painted, "the same stroke again");
  const erased = documents.paint(painted, maskOf(drawing("#..#")), true);
  assert.deepEqual(seen(erased), drawing(".##.").data);
  assert.equal(documents.paint(erased, maskOf(drawing("#..#")), true), erased, "the same stroke again");
});

test("what changed one pixel counts as a whole, also for later answers", () => {
  const document = answered(oneClick(), [maskOf(drawing("##.."))]);
  const painted = documents.paint(document, maskOf(drawing(".##.")), false);
  const erased = documents.paint(painted, maskOf(drawing("#..#")), true);
  const later = answered(documents.addPoint(erased, point(3, 0)), [maskOf(drawing("#..#"))]);
  assert.deepEqual(seen(later), drawing(".##.").data);
});

test("a hidden object is shown by a stroke that changes nothing else", () => {
  const hidden = documents.describe(answered(oneClick(), [maskOf(drawing("##.."))]), "object-1", { visible: false });
  const shown = documents.paint(hidden, maskOf(drawing("#...")), false);
  assert.equal(documents.activeThing(shown).visible, true);
  assert.deepEqual(seen(shown), drawing("##..").data);
});

test("a stroke without an active object begins one, an eraser's does not", () => {
  const stroke = maskOf(drawing("#.", ".#"));
  const document = documents.newDocument();
  assert.equal(documents.paint(document, stroke, true), document);
  const painted = documents.paint(document, stroke, false);
  assert.equal(documents.maskOf(documents.activeThing(painted)), stroke);
});

const ALGEBRA =
  "the mask is the chosen candidate with what was added and without what was removed, " +
  "later strokes winning among those that changed something";
test(ALGEBRA, () => {
  const random = randomNumbers(43);
  const effects = { true: 0, false: 0 };
  for (let round = 0; round < 300; round += 1) {
    const [width, height] = [1 + Math.floor(random() * 9), 1 + Math.floor(random() * 9)];
    const bitmap = () => randomBitmapOf(random, width, height);
    let document = oneClick();
    let candidate = new Uint8Array(width * height);
    const hand = new Map(); // pixel -> 1 where it was painted last, 0 where it was erased last
    const isExpected = (x, y) => (hand.get(y * width + x) ?? candidate[y * width + x]) === 1;
    const expected = () => bitmapOf(width, height, isExpected).data;
    const check = (message) => {
      const mask = documents.maskOf(documents.activeThing(document));
      assert.deepEqual(mask ? bitmapOfMask(mask).data : new Uint8Array(width * height), expected(), message);
    };
    for (let turn = 0; turn < 8; turn += 1) {
      const move = oneOf(random, ["paint", "erase", "answer", "choose"]);
      if (move === "answer") {
        document = documents.addPoint(document, point(turn, turn));
        const bitmaps = [bitmap(), bitmap(), bitmap()];
        const scores = [0.1, 0.3, 0.2];
        document = answered(document, bitmaps.map(maskOf), scores);
        candidate = bitmaps[documents.activeThing(document).pick ?? 1].data;
      } else if (move === "choose") {
        const pick = oneOf(random, [null, 0, 1, 2]);
        document = documents.choose(document, "object-1", pick);
        const { answer } = documents.activeThing(document);
        if (answer) candidate = bitmapOfMask(answer.candidates[pick ?? 1].mask).data;
      } else {
        const [stroke, value, before] = [bitmap(), move === "paint" ? 1 : 0, expected()];
        // While a mask is on its way nobody knows yet what a stroke will change, so each one counts.
        const isWaiting = documents.isWaiting(documents.activeThing(document));
        const hasEffect = stroke.data.some((isSet, pixel) => isSet && (isWaiting || before[pixel] !== value));
        const painted = documents.paint(document, maskOf(stroke), move === "erase");
        assert.equal(painted !== document, hasEffect, `round ${round}, ${move}`);
        effects[hasEffect] += 1;
        document = painted;
        if (hasEffect) stroke.data.forEach((isSet, pixel) => isSet && hand.set(pixel, value));
      }
      check(`round ${round}, after ${move}`);
    }
  }
  assert.ok(effects.true > 300 && effects.false > 300, JSON.stringify(effects));
});

test("a stroke beside the image changes nothing", () => {
  const nothing = maskOf(drawing("...", "..."));
  const document = documents.newDocument();
  assert.equal(documents.paint(document, nothing, false), document);
  const painted = documents.paint(document, maskOf(drawing("#..", "...")), false);
  for (const erases of [true, false]) assert.equal(documents.paint(painted, nothing, erases), painted);
});
