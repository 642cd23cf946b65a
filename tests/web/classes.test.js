import assert from "node:assert/strict";
import { test } from "node:test";

import * as classes from "../../src/triton_sam/service/static/js/core/classes.js";
import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import { classify, recolouring, withClassOfNew } from "../../src/triton_sam/service/static/js/core/document_classes.js";
import { point } from "./document_helpers.js";

const named = (...names) => names.reduce((all, name) => classes.addClass(all, name), classes.newClasses());
const namesOf = ({ list }) => list.map(({ name }) => name);

test("a class keeps its number when others are moved, renamed or deleted", () => {
  let all = named("cell", "nucleus", "debris");
  all = classes.moveClass(all, "class-3", -2);
  all = classes.describeClass(all, "class-3", { name: "dirt", colour: "#ABCDEF" });
  all = classes.deleteClass(all, "class-1");
  all = classes.addClass(all, "new");
  assert.deepEqual(classes.classList(all).map(({ id, name }) => [id, name]), [[3, "dirt"], [2, "nucleus"], [4, "new"]]);
  assert.equal(all.list[0].colour, "#abcdef");
});

test("names are one line, not empty, and each there once", () => {
  const all = named(" cell\n body ", "cell body", "  ", "x".repeat(200));
  assert.deepEqual(namesOf(all), ["cell body", "x".repeat(80)]);
  assert.equal(classes.describeClass(all, "class-2", { name: "cell body" }), all);
  assert.equal(classes.describeClass(all, "class-2", { name: " " }), all);
});

test("colours of new classes differ", () => {
  const all = named(..."abcdefghij");
  assert.equal(new Set(all.list.map(({ colour }) => colour)).size, 10);
});

test("a deleted class is no class, and its number is not given again until the deletion is undone", () => {
  let all = classes.activateClass(named("cell", "nucleus"), "class-2");
  const [, nucleus] = all.list;
  all = classes.deleteClass(all, "class-2");
  assert.equal(all.activeId, null);
  assert.equal(classes.classOf(all, "class-2"), null);
  assert.deepEqual(classes.restoreClass(all, nucleus, 1).list.map(({ id }) => id), ["class-1", "class-2"]);
  assert.equal(classes.addClass(all, "other").list.at(-1).id, "class-3");
});

test("classes from elsewhere: known names are known classes, free numbers are kept", () => {
  const before = classes.addClass(named("cell"), "dead", { number: 7 });
  const others = [{ name: "dead", number: 3 }, { name: "a", number: 90 }, { name: "b", number: 12 }, { name: "c", number: 2 }, { name: "" }];
  const merged = classes.mergeClasses(before, others);
  assert.deepEqual(merged.ids, ["class-7", "class-90", "class-12", "class-91", null]);
  assert.deepEqual(namesOf(merged.classes), ["cell", "dead", "a", "b", "c"]);
  assert.deepEqual(classes.mergeClasses(classes.newClasses(), [{ name: "z", number: 3 }, { name: "y", number: 1 }]).ids, ["class-3", "class-1"]);
  assert.deepEqual(classes.mergeClasses(classes.newClasses(), [{ name: "zero", number: 0 }]).ids, ["class-1"]);
});

test("what is stored comes back, and rubbish does not", () => {
  const all = classes.activateClass(classes.deleteClass(named("a", "b", "c"), "class-3"), "class-1");
  assert.deepEqual(classes.classesFrom(structuredClone(all)), all);
  for (const rubbish of [undefined, null, 3, {}, { list: 4 }, { list: [null, { id: "x", name: "y", colour: "#000000" }] }]) {
    assert.deepEqual(classes.classesFrom(rubbish), classes.newClasses());
  }
});

test("lists of classes in every form that people have", () => {
  const namesIn = (text) => classes.readClassList(text).map(({ name }) => name);
  assert.deepEqual(namesIn("\ufeffcell\r\n\r\n nucleus \n"), ["cell", "nucleus"]);
  assert.deepEqual(namesIn('["cell", "nucleus"]'), ["cell", "nucleus"]);
  const coco = classes.readClassList('{"images": [], "categories": [{"id": 4, "name": "cell", "color": [255, 0, 16]}]}');
  assert.deepEqual(coco, [{ name: "cell", colour: "#ff0010", number: 4 }]);
  const own = named("cell", "nucleus");
  assert.deepEqual(classes.mergeClasses(classes.newClasses(), classes.readClassList(JSON.stringify(classes.classList(own)))).classes, own);
  assert.throws(() => classes.readClassList("  \n"), /no classes/);
  assert.throws(() => classes.readClassList("{"), /not valid JSON/);
  assert.equal(classes.colourFrom(-65536), "#ff0000"); // QuPath's packed colour
});

test("new objects get the class, and those that were there keep theirs", () => {
  const [cell] = named("cell").list;
  const before = documents.addPoint(documents.newDocument(), point(1, 2));
  const after = documents.addBox(before, [0, 0, 5, 5]);
  const { things } = withClassOfNew(before, after, cell);
  assert.deepEqual(things.map(({ classId }) => classId), [undefined, "class-1"]);
  assert.equal(things[1].colour, cell.colour);
  assert.equal(withClassOfNew(before, before, cell), before);
  assert.equal(withClassOfNew(before, after, null).things[1].colour, after.things[1].colour);
});

test("an object has the colour of its class, unless the user chose one", () => {
  let all = named("cell");
  const start = documents.addBox(documents.addBox(documents.newDocument(), [0, 0, 5, 5]), [1, 1, 4, 4]);
  const classed = classify(classify(start, "object-1", all.list[0]), "object-2", all.list[0]);
  const own = documents.describe(classed, "object-2", { colour: "#123456", hasOwnColour: true });
  all = classes.describeClass(all, "class-1", { colour: "#00ff00" });
  const recoloured = recolouring(all.list);
  assert.deepEqual(recoloured(own).things.map(({ colour }) => colour), ["#00ff00", "#123456"]);
  assert.equal(recoloured(own).things[0], recoloured(classed).things[0], "shared objects stay shared");
  assert.equal(recolouring([])(own), own);
  assert.equal(classify(own, "object-2", all.list[0]), own);
  assert.equal(classify(own, "object-1", null).things[0].classId, null);
});
