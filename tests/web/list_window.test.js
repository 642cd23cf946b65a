import assert from "node:assert/strict";
import test from "node:test";

import { rowsInView, scrolledTo } from "../../src/triton_sam/service/static/js/core/list_window.js";
import { randomNumbers } from "./helpers.js";

test("every visible row is in view, and only a few more, wherever a long list is scrolled to", () => {
  const random = randomNumbers(7);
  for (let turn = 0; turn < 500; turn += 1) {
    const count = Math.floor(random() * 1000);
    const length = 20 + Math.floor(random() * 80);
    const visible = 1 + Math.floor(random() * 900);
    const scrolled = random() * Math.max(0, count * length - visible);
    const { first, past } = rowsInView({ count, length, scrolled, visible });
    const isVisible = (row) => (row + 1) * length > scrolled && row * length < scrolled + visible;
    for (let row = 0; row < count; row += 1) if (isVisible(row)) assert.ok(row >= first && row < past);
    assert.ok(first >= 0 && past <= count && past - first <= visible / length + 10);
  }
});

test("an empty list and a list that was scrolled beyond its new end show no row that is not there", () => {
  assert.deepEqual(rowsInView({ count: 0, length: 60, scrolled: 0, visible: 600 }), { first: 0, past: 0 });
  assert.deepEqual(rowsInView({ count: 3, length: 60, scrolled: 6000, visible: 600 }), { first: 3, past: 3 });
});

test("a row is scrolled into view by the shortest way", () => {
  const list = { length: 60, scrolled: 120, visible: 240 };
  assert.equal(scrolledTo(0, list), 0);
  assert.equal(scrolledTo(2, list), 120);
  assert.equal(scrolledTo(5, list), 120);
  assert.equal(scrolledTo(6, list), 180);
});
