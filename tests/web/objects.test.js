import assert from "node:assert/strict";
import test from "node:test";

import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import { coveredIndex, objectsOf } from "../../src/triton_sam/service/static/js/export/objects.js";
import { drawing, maskOf } from "./helpers.js";

const stroke = maskOf(drawing("##", ".#"));

/** Three painted objects: the second is named, the third is hidden. */
function painted() {
  let document = documents.newDocument();
  for (let count = 0; count < 3; count += 1) document = documents.activate(documents.paint(document, stroke, false), null);
  document = documents.describe(document, "object-2", { name: "cup" });
  return documents.describe(document, "object-3", { visible: false });
}

test("visible objects with a mask, with labels that count hidden ones", () => {
  const document = documents.describe(painted(), "object-1", { visible: false });
  assert.deepEqual(objectsOf(document).map(({ name, label, score }) => [name, label, score]), [["cup", 2, null]]);
});

test("an object has the category of its class, else of its name, else the common one", () => {
  const classes = [{ id: "c1", name: "nucleus", colour: "#123456" }];
  const categories = (document) => objectsOf(document, classes).map(({ category }) => category);
  assert.deepEqual(categories(painted()), ["object", "cup"]);
  assert.deepEqual(categories(documents.describe(painted(), "object-2", { classId: "c1" })), ["object", "nucleus"]);
  assert.deepEqual(categories(documents.describe(painted(), "object-2", { classId: "gone" })), ["object", "cup"]);
});

test("the bottom one of the objects that lie wholly under others", () => {
  const indexOf = (...masks) => coveredIndex(masks.map((mask) => ({ mask: maskOf(mask) })));
  assert.equal(indexOf(), -1);
  assert.equal(indexOf(drawing("##."), drawing(".##")), -1);
  assert.equal(indexOf(drawing("#.."), drawing(".#."), drawing("##."), drawing("###")), 0);
  assert.equal(indexOf(drawing("..#"), drawing(".#."), drawing("##.")), 1);
  assert.equal(indexOf(drawing("###"), drawing("#.."), drawing(".##")), 0, "by two together");
});
