import assert from "node:assert/strict";
import test from "node:test";

import { maskOf as shownMask, newDocument, paint, setCleaning, cleaningOf } from "../../src/triton_sam/service/static/js/core/document.js";
import { area, equal } from "../../src/triton_sam/service/static/js/core/mask.js";
import { difference, shownMasks } from "../../src/triton_sam/service/static/js/core/scene.js";
import { cocoDocument } from "../../src/triton_sam/service/static/js/export/coco.js";
import { geoJson } from "../../src/triton_sam/service/static/js/export/geojson.js";
import { objectsOf } from "../../src/triton_sam/service/static/js/export/objects.js";
import { bitmapOf, maskOf } from "./helpers.js";

const left = maskOf(bitmapOf(12, 9, (x) => x < 7));
const right = maskOf(bitmapOf(12, 9, (x) => x >= 4));
const dotted = maskOf(bitmapOf(30, 30, (x, y) => (x < 20 && (x !== 9 || y !== 9)) || (x === 25 && y === 25)));
const clean = maskOf(bitmapOf(30, 30, (x) => x < 20));
const thing = { id: "object-1", name: "Object 1", colour: "#ff0000", visible: true, points: [{ x: 1, y: 1, label: 1 }], box: null, pick: null };
const answered = (mask) => ({ ...thing, answer: { key: "", candidates: [{ mask, score: 0.9 }] }, added: null, removed: null });
const documentOf = (...things) => ({ things, activeId: things[0].id, made: things.length });

test("what comes and what goes", () => {
  const { added, removed } = difference(right, left);
  assert.equal(area(added), 9 * 5);
  assert.equal(area(removed), 9 * 4);
  assert.deepEqual(difference(right, null), { added: right, removed: null });
});

test("a stroke is shown before it is in the document", () => {
  const document = paint(newDocument(), left, false);
  const [{ mask }] = shownMasks(document, { mask: right, erases: true }, false);
  assert.equal(area(mask), 9 * 4);
  assert.equal(area(shownMasks(document, { mask: right, erases: false }, false)[0].mask), 9 * 12);
  assert.deepEqual(shownMasks(document, null, true).map(({ isOutline }) => Boolean(isOutline)), [false, true]);
});

test("the model's mask is cleaned and what was painted is not, on the screen and in exports", () => {
  const model = answered(dotted);
  const hole = maskOf(bitmapOf(30, 30, (x, y) => x === 3 && y === 3));
  const erased = { ...model, removed: hole };
  const painted = { ...thing, points: [], answer: null, added: dotted, removed: null };
  const before = shownMask(model);
  setCleaning(8);
  try {
    assert.ok(equal(shownMask(model), clean));
    assert.equal(area(shownMask(erased)), area(clean) - 1);
    assert.equal(shownMask(painted), dotted);
    assert.deepEqual([model, painted].map(cleaningOf), [8, 0]);
    const picture = { name: "a.png", width: 30, height: 30 };
    const objects = objectsOf(documentOf(model, { ...painted, id: "object-2" }));
    assert.deepEqual(cocoDocument(picture, objects).info.clean, { holes: 8, islands: 8 });
    assert.deepEqual(geoJson(picture, objects).features.map(({ properties }) => properties.clean), [{ holes: 8, islands: 8 }, undefined]);
    assert.equal("clean" in cocoDocument(picture, objectsOf(documentOf(painted))).info, false);
  } finally {
    setCleaning(0);
  }
  assert.equal(shownMask(model), before, "the model's mask is kept");
  assert.equal("clean" in cocoDocument({ name: "a.png", width: 30, height: 30 }, objectsOf(documentOf(model))).info, false);
});
