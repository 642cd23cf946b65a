/** Objects that were found: in the document, filtered, sorted, exported. */
import assert from "node:assert/strict";
import { test } from "node:test";

import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import * as found from "../../src/triton_sam/service/static/js/core/found.js";
import { amend, newHistory, redo, step, undo } from "../../src/triton_sam/service/static/js/core/history.js";
import { packed, unpacked } from "../../src/triton_sam/service/static/js/core/history_packing.js";
import { shownMasks } from "../../src/triton_sam/service/static/js/core/scene.js";
import { cocoDocument } from "../../src/triton_sam/service/static/js/export/coco.js";
import { objectsOf } from "../../src/triton_sam/service/static/js/export/objects.js";
import { withClassIds } from "../../src/triton_sam/service/static/js/project/file_format.js";
import { point } from "./document_helpers.js";
import { drawing, maskOf } from "./helpers.js";

const SMALL = maskOf(drawing("#.....", "......", "......"));
const MIDDLE = maskOf(drawing("...##.", "...##.", "......"));
const LARGE = maskOf(drawing("######", "######", "......"));
const STROKE = maskOf(drawing("......", "......", "##...."));
const FOUND = [
  { mask: SMALL, score: 0.9, colour: "#000001" },
  { mask: LARGE, score: 0.8, colour: "#000002" },
  { mask: MIDDLE, score: 0.95, colour: "#000003" },
];
const painted = () => documents.activate(documents.paint(documents.newDocument(), STROKE, false), null);
const all = () => found.addFound(documents.newDocument(), FOUND, null);
const masksOf = (document) => objectsOf(document).map(({ mask }) => mask);

test("found objects lie under the user's, the largest at the bottom, with masks and scores as they came", () => {
  const document = found.addFound(painted(), FOUND, null);
  assert.deepEqual(document.things.map(documents.maskOf), [LARGE, MIDDLE, SMALL, STROKE]);
  assert.deepEqual(document.things.map(({ id, name }) => [id, name])[0], ["object-2", "Object 2"]);
  assert.deepEqual(document.things.map(documents.scoreOf), [0.8, 0.95, 0.9, null]);
  assert.equal(document.made, 4);
  assert.ok(!document.things.some(documents.isWaiting), "the server is not asked again");
  const next = documents.paint(document, STROKE, false);
  assert.equal(next.things.at(-1).id, "object-5");
});

test("a find is one undo step, and is stored and read back with its filter", () => {
  const before = painted();
  const after = found.withFilter(found.addFound(before, FOUND, null), { score: 0.85, size: 2 });
  const history = step(newHistory(before), after);
  assert.equal(undo(history).present, before);
  assert.equal(redo(undo(history)).present, after);
  const masks = [];
  const stored = structuredClone(packed(history, (mask) => masks.push(mask) - 1));
  assert.deepEqual(unpacked(stored, (id) => masks[id]), history);
});

test("the next find replaces what the user left as it was, and keeps the rest", () => {
  let document = found.addFound(painted(), FOUND, null);
  document = documents.describe(document, "object-2", { name: "table" });
  document = documents.paint(documents.activate(document, "object-3"), STROKE, false);
  const again = found.addFound(document, [FOUND[0]], null);
  assert.deepEqual(again.things.map(({ id }) => id), ["object-5", "object-2", "object-3", "object-1"]);
  assert.equal(again.activeId, "object-3");
  assert.equal(found.addFound(again, [], null).things.length, 3);
  assert.equal(found.addFound(painted(), [], null).things.length, 1);
  assert.equal(found.addFound(documents.activate(all(), "object-1"), FOUND, null).activeId, null);
});

test("the filter hides by score and by size: not drawn, not listed, not exported", () => {
  const document = found.withFilter(found.addFound(painted(), FOUND, null), { score: 0.9, size: 0 });
  assert.deepEqual(masksOf(document), [MIDDLE, SMALL, STROKE]);
  assert.deepEqual(shownMasks(document, null, false).map(({ mask }) => mask), [MIDDLE, SMALL, STROKE]);
  assert.deepEqual(found.listed(document).map(documents.maskOf), [STROKE, SMALL, MIDDLE]);
  assert.deepEqual(masksOf(found.withFilter(document, { score: 0, size: 4 })), [LARGE, MIDDLE, STROKE]);
  assert.deepEqual(masksOf(found.withFilter(document, found.NO_FILTER)), [LARGE, MIDDLE, SMALL, STROKE]);
  assert.deepEqual(found.countFound(document), { total: 3, shown: 2 });
  assert.deepEqual(objectsOf(document).map(({ label }) => label), [2, 3, 4], "labels count hidden ones");
});

test("what the user has changed is not hidden; a hidden object is not the active one", () => {
  const document = documents.activate(all(), "object-1");
  const edited = documents.addPoint(document, point(1, 2));
  assert.deepEqual(masksOf(found.withFilter(edited, { score: 1, size: 99 })), [LARGE]);
  assert.equal(found.withFilter(edited, { score: 1, size: 99 }).activeId, "object-1");
  const filtered = found.withFilter(document, { score: 1, size: 0 });
  assert.equal(filtered.activeId, null);
  assert.equal(found.withFilter(filtered, { score: 1, size: 0 }), filtered);
  assert.ok(documents.describe(all(), "object-1", { visible: false }).things.every(found.isUntouched), "hiding is no change");
});

test("a part that was added by clicks for good makes it the user's own", () => {
  const active = documents.activate(all(), "object-3");
  const clicked = documents.addPoint(active, point(4, 2));
  const key = documents.promptKey(documents.activeThing(clicked));
  const answered = documents.answering(key, [{ mask: STROKE, score: 0.7 }])(clicked);
  const next = documents.addPoint(answered, point(0, 0, 0));
  assert.equal(documents.activeThing(next).found, null);
  assert.equal(found.isUntouched({ ...documents.activeThing(next), points: [], answer: null }), false);
});

test("the filter is of all undo steps", () => {
  const history = step(newHistory(all()), documents.remove(all(), "object-1"));
  const filtered = amend(history, (document) => found.withFilter(document, { score: 0.9, size: 0 }));
  assert.deepEqual(masksOf(filtered.present), [MIDDLE, SMALL]);
  assert.deepEqual(masksOf(undo(filtered).present), [MIDDLE, SMALL]);
});

test("a chosen object has a light outline on top", () => {
  const masks = shownMasks(documents.activate(all(), "object-1"), null, false);
  assert.deepEqual(masks.at(-1), { mask: LARGE, colour: [255, 255, 255], isOutline: true });
  assert.equal(masks.length, 4);
  assert.equal(shownMasks(documents.describe(documents.activate(all(), "object-1"), "object-1", { visible: false }), null, false).length, 2);
});

test("the list by size and by score, those without a score last", () => {
  const document = found.addFound(painted(), FOUND, null);
  const order = (name) => found.listed(document, name).map(documents.maskOf);
  assert.deepEqual(order("drawn"), [STROKE, SMALL, MIDDLE, LARGE]);
  assert.deepEqual(order("size"), [LARGE, MIDDLE, STROKE, SMALL]);
  assert.deepEqual(order("score"), [MIDDLE, SMALL, LARGE, STROKE]);
});

test("moving goes past hidden objects", () => {
  const document = documents.move(all(), "object-1", 1); // MIDDLE, LARGE, SMALL
  const filtered = found.withFilter(document, { score: 0.9, size: 0 });
  const moved = found.moveListed(filtered, "object-2", 1);
  assert.deepEqual(moved.things.map(documents.maskOf), [LARGE, SMALL, MIDDLE]);
  assert.equal(found.moveListed(document, "object-3", 1), document);
  assert.equal(found.moveListed(document, "object-2", -1), document);
});

test("a chosen class is that of what was found, also in a project file with other classes", () => {
  const document = found.addFound(documents.newDocument(), FOUND, { id: "class-1", name: "cell", colour: "#00ff00" });
  assert.ok(document.things.every(({ classId, colour }) => classId === "class-1" && colour === "#00ff00"));
  const renamed = withClassIds(document, new Map([["class-1", "class-7"]]));
  assert.ok(renamed.things.every((thing) => thing.classId === "class-7" && found.isUntouched(thing)));
});

test("COCO has the masks and scores as they came", () => {
  const { annotations, info } = cocoDocument({ name: "a.png", width: 6, height: 3 }, objectsOf(all()));
  assert.deepEqual(annotations.map(({ area, score }) => [area, score]), [[12, 0.8], [4, 0.95], [1, 0.9]]);
  assert.equal(info.clean, undefined, "nothing was cleaned");
});
