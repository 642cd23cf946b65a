import assert from "node:assert/strict";
import test from "node:test";

import { Items, newItem } from "../../src/triton_sam/service/static/js/project/items.js";
import { refusalText } from "../../src/triton_sam/service/static/js/project/adding.js";
import { inOrder } from "../../src/triton_sam/service/static/js/input/dropped_files.js";

function listOf(...records) {
  const list = new Items();
  list.reset(records.map((record) => ({ record, name: `${record}.png` })), records[0]);
  return list;
}

test("an image is untouched, begun by work, and done when the user says so", () => {
  assert.equal(newItem({}).status, "untouched");
  assert.equal(newItem({ hasWork: true }).status, "begun");
  assert.equal(newItem({ isDone: true }).status, "done");
  const list = listOf("a");
  assert.equal(list.change("a", { hasWork: true }).status, "begun");
  assert.equal(list.change("a", { hasWork: true }), null, "nothing has changed");
  assert.equal(list.change("a", { isDone: true }).status, "done");
  assert.equal(list.change("a", { isDone: false }).status, "begun");
  assert.equal(list.change("gone", { isDone: true }), null);
});

test("the neighbours of an image, and none beyond the ends", () => {
  const list = listOf("a", "b", "c");
  assert.equal(list.neighbour(1).record, "b");
  assert.equal(list.neighbour(-1), null);
  assert.equal(list.neighbour(1, "c"), null);
  assert.equal(list.neighbour(1, "gone"), null);
});

test("removed images come back to their places", () => {
  const list = listOf("a", "b", "c", "d", "e");
  const removed = list.remove(["a", "c", "d"]);
  assert.deepEqual(list.order, ["b", "e"]);
  assert.equal(list.current, null);
  list.add(newItem({ record: "f" }));
  list.restore(removed);
  assert.deepEqual(list.order, ["a", "b", "c", "d", "e", "f"]);
  list.restore(removed);
  assert.equal(list.order.length, 6, "only once");
  assert.equal(list.placeOf("e"), 4);
});

test("a stored list whose open image is gone has none open", () => {
  const list = new Items();
  list.reset([{ record: "a" }], "gone");
  assert.equal(list.current, null);
});

test("each refused file is named, by reason", () => {
  const refused = [
    { name: "a.txt", reason: "This is not an image." },
    { name: "b.png", reason: "It is broken." },
    { name: "c.txt", reason: "This is not an image." },
  ];
  assert.equal(refusalText(refused, 9), "3 of 9 files were not added. a.txt, c.txt: This is not an image. b.png: It is broken.");
  assert.match(refusalText(refused.slice(1, 2), 2), /^1 of 2 files was not added\. b\.png: It is broken\.$/);
});

test("files are in natural order, without the system's own", () => {
  const files = ["a10.png", ".DS_Store", "a2.png", "Thumbs.db", "sub/a1.png"].map((path) => ({
    name: path.split("/").at(-1), pathInFolder: path,
  }));
  assert.deepEqual(inOrder(files).map(({ pathInFolder }) => pathInFolder), ["a2.png", "a10.png", "sub/a1.png"]);
});
