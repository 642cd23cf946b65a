import assert from "node:assert/strict";
import test from "node:test";

import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import * as histories from "../../src/triton_sam/service/static/js/core/history.js";
import { packed, unpacked } from "../../src/triton_sam/service/static/js/core/history_packing.js";
import { drawing, maskOf, oneOf, randomBitmapOf, randomNumbers } from "./helpers.js";

const point = (x, y, label = 1) => ({ x, y, label });
const documentsOf = ({ past, present, future }) => [...past, present, ...future];
const thingsOf = (history) => documentsOf(history).flatMap(({ things }) => things);
const masksOf = (thing) =>
  [...(thing.answer?.candidates.map(({ mask }) => mask) ?? []), thing.added, thing.removed].filter(Boolean);

/** What the browser's database does: each mask has a number, and is written when it is first seen. */
class Masks {
  written = [];
  _ids = new Map();

  idOf = (mask) => {
    if (!this._ids.has(mask)) this._ids.set(mask, this.written.push(structuredClone(mask)));
    return this._ids.get(mask);
  };

  maskOf = (id) => {
    assert.ok(Number.isInteger(id) && id >= 1 && id <= this.written.length, `no mask has the number ${id}`);
    return this.written[id - 1];
  };
}

const restored = (history, masks = new Masks()) =>
  unpacked(structuredClone(packed(history, masks.idOf)), masks.maskOf);

/** A history as a person makes it: clicks, boxes, strokes, names, answers that come late, undo and redo. */
function randomHistory(random, turns) {
  const mask = () => maskOf(randomBitmapOf(random, 6, 5));
  const moves = [
    (present) => documents.addPoint(present, point(oneOf(random, [1, 2]), 1, oneOf(random, [0, 1, 1]))),
    (present) => documents.addPoint(documents.activate(present, null), point(1, 1)),
    (present) => documents.addBox(present, [0, 0, 3, 3]),
    (present) => documents.paint(present, mask(), random() < 0.4),
    (present) => documents.choose(present, present.activeId, oneOf(random, [null, 0, 1])),
    (present) => documents.describe(present, present.activeId, { name: `${random()}` }),
    (present) => documents.remove(present, present.things[0]?.id),
  ];
  let history = histories.newHistory(documents.newDocument());
  for (let turn = 0; turn < turns; turn += 1) {
    const kind = random();
    const waiting = thingsOf(history).find(documents.isWaiting);
    if (kind < 0.2) history = oneOf(random, [histories.undo, histories.redo])(history);
    else if (kind < 0.4 && waiting) {
      const candidates = [0.5, 0.75].map((score) => ({ mask: mask(), score }));
      history = histories.amend(history, documents.answering(documents.promptKey(waiting), candidates));
    } else history = histories.step(history, oneOf(random, moves)(history.present));
  }
  return history;
}

/** Whether the same places of two lists hold the same ones. */
function assertSharedAlike(before, after, message) {
  assert.equal(after.length, before.length);
  const partners = new Map();
  before.forEach((one, index) => {
    if (!partners.has(one)) partners.set(one, after[index]);
    assert.equal(partners.get(one), after[index], message);
  });
  assert.equal(new Set(after).size, new Set(before).size, message);
}

test("what comes back is what was kept, and shares what was shared", () => {
  const random = randomNumbers(71);
  let shared = 0;
  for (let round = 0; round < 150; round += 1) {
    const history = randomHistory(random, 40);
    const copy = structuredClone(history);
    const back = restored(history);
    assert.deepEqual(history, copy, "what is kept is not changed");
    assert.deepEqual(back, history);
    const [before, after] = [thingsOf(history), thingsOf(back)];
    assertSharedAlike(before, after, `objects, round ${round}`);
    assertSharedAlike(before.flatMap(masksOf), after.flatMap(masksOf), `masks, round ${round}`);
    shared += before.length - new Set(before).size;
  }
  assert.ok(shared > 1000, `only ${shared} objects were shared`);
});

test("each mask is written once, however many documents have it", () => {
  const random = randomNumbers(72);
  for (let round = 0; round < 50; round += 1) {
    const history = randomHistory(random, 40);
    const masks = new Masks();
    restored(history, masks);
    assert.equal(masks.written.length, new Set(thingsOf(history).flatMap(masksOf)).size);
  }
});

test("after another step only its mask is written, and after none nothing", () => {
  const candidates = [0.5, 0.75].map((score) => ({ mask: maskOf(drawing("#.", "..")), score }));
  const clicked = documents.addPoint(documents.newDocument(), point(0, 0));
  let history = histories.step(histories.newHistory(documents.newDocument()), clicked);
  const masks = new Masks();
  const written = () => {
    const before = masks.written.length;
    packed(history, masks.idOf);
    return masks.written.length - before;
  };
  assert.equal(written(), 0, "nothing is answered yet");
  history = histories.amend(history, documents.answering(documents.promptKey(clicked.things[0]), candidates));
  assert.equal(written(), 2);
  assert.equal(written(), 0);
  history = histories.step(history, documents.describe(history.present, "object-1", { name: "nucleus" }));
  assert.equal(written(), 0);
  history = histories.step(history, documents.paint(history.present, maskOf(drawing("..", ".#")), false));
  assert.equal(written(), 1, "what was added");
  history = histories.undo(history);
  assert.equal(written(), 0);
});

test("what comes back and is kept again writes nothing, and is the same", () => {
  const random = randomNumbers(73);
  for (let round = 0; round < 50; round += 1) {
    const history = randomHistory(random, 30);
    const masks = new Masks();
    const first = packed(history, masks.idOf);
    const back = unpacked(structuredClone(first), masks.maskOf);
    const ids = new Map(masks.written.map((mask, index) => [mask, index + 1]));
    const known = (mask) => ids.get(mask) ?? assert.fail("this mask would be written again");
    assert.deepEqual(packed(back, known), first);
  }
});

test("what is kept has numbers in place of masks, and everything else", () => {
  const [first, second, stroke, eraser] = ["##..", "#...", "..#.", "#..."].map((rows) => maskOf(drawing(rows)));
  const clicked = documents.addPoint(documents.newDocument(), point(0, 0));
  const key = documents.promptKey(clicked.things[0]);
  const candidates = [{ mask: first, score: 0.75 }, { mask: second, score: 0.5 }];
  let document = documents.answering(key, candidates)(clicked);
  document = documents.paint(document, stroke, false);
  document = documents.paint(document, eraser, true);
  const history = histories.step(histories.newHistory(clicked), document);
  const masks = new Masks();
  const kept = packed(history, masks.idOf);
  assert.doesNotMatch(JSON.stringify(kept), /runs/);
  const { added, removed } = document.things[0];
  assert.deepEqual(masks.written, [first, second, added, removed]);
  const answer = { key, candidates: [{ mask: 1, score: 0.75 }, { mask: 2, score: 0.5 }] };
  assert.deepEqual(kept, {
    past: [clicked],
    present: { ...document, things: [{ ...document.things[0], answer, added: 3, removed: 4 }] },
    future: [],
  });
});

test("an empty history comes back, and an answer without masks too", () => {
  const empty = histories.newHistory(documents.newDocument());
  assert.deepEqual(restored(empty), empty);
  const clicked = documents.addPoint(documents.newDocument(), point(0, 0));
  const answered = documents.answering(documents.promptKey(clicked.things[0]), [])(clicked);
  assert.deepEqual(restored(histories.newHistory(answered)).present.things[0].answer.candidates, []);
});

test("a late answer after coming back still reaches what is shared, once", () => {
  const clicked = documents.addPoint(documents.newDocument(), point(0, 0));
  const boxed = documents.addBox(clicked, [0, 0, 3, 3]);
  const history = [clicked, boxed].reduce(histories.step, histories.newHistory(documents.newDocument()));
  const back = restored(history);
  const answer = documents.answering(documents.promptKey(clicked.things[0]), [{ mask: maskOf(drawing("#.")), score: 1 }]);
  const amended = histories.amend(back, answer);
  assert.equal(amended.past[1].things[0], amended.present.things[0]);
  assert.notEqual(amended.present.things[0].answer, null);
});
