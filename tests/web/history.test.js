import assert from "node:assert/strict";
import test from "node:test";

import * as histories from "../../src/triton_sam/service/static/js/core/history.js";
import { oneOf, randomNumbers } from "./helpers.js";

/** Whoever changes one in place finds out. */
function frozen(history) {
  for (const part of [history, history.past, history.future]) Object.freeze(part);
  return history;
}

/** What a history is: documents in order, and which of them is seen. */
const plain = ({ past, present, future }) => ({ documents: [...past, present, ...future], at: past.length });

const MOVES = {
  step: ({ documents, at }, document) => ({ documents: [...documents.slice(0, at + 1), document], at: at + 1 }),
  replace: ({ documents, at }, document) => ({ documents: documents.with(at, document), at }),
  undo: ({ documents, at }) => ({ documents, at: Math.max(0, at - 1) }),
  redo: ({ documents, at }) => ({ documents, at: Math.min(documents.length - 1, at + 1) }),
  amend: ({ documents, at }, change) => ({ documents: documents.map(change), at }),
};

test("any sequence of moves is that of a list with a place in it, and changes nothing in place", () => {
  const random = randomNumbers(21);
  for (let round = 0; round < 200; round += 1) {
    let made = 0;
    const newDocument = () => Object.freeze({ number: (made += 1), answered: false });
    let history = frozen(histories.newHistory(newDocument()));
    let expected = plain(history);
    for (let turn = 0; turn < 40; turn += 1) {
      const move = oneOf(random, ["step", "step", "step", "replace", "undo", "undo", "redo", "amend"]);
      const parity = oneOf(random, [0, 1]);
      const answer = (document) =>
        document.answered || document.number % 2 === parity ? document : Object.freeze({ ...document, answered: true });
      const argument = move === "amend" ? answer : newDocument();
      const before = history;
      history = frozen(histories[move](history, argument));
      expected = move === "amend" ? plain(history) : MOVES[move](expected, argument);
      if (move === "amend") assert.deepEqual(plain(history), MOVES.amend(plain(before), answer));
      assert.equal(plain(history).at, expected.at);
      assert.equal(plain(history).documents.length, expected.documents.length);
      plain(history).documents.forEach((document, index) => assert.equal(document, expected.documents[index]));
      assert.equal(histories.canUndo(history), expected.at > 0);
      assert.equal(histories.canRedo(history), expected.at < expected.documents.length - 1);
    }
  }
});

test("undoing everything and redoing everything ends where it began", () => {
  const steps = Array.from({ length: 20 }, (_, number) => ({ number }));
  const full = steps.reduce(histories.step, histories.newHistory({ number: -1 }));
  let history = full;
  while (histories.canUndo(history)) history = histories.undo(history);
  assert.equal(history.present.number, -1);
  assert.equal(history.future.length, 20);
  while (histories.canRedo(history)) history = histories.redo(history);
  assert.deepEqual(history, full);
});

test("where nothing changes, the history is the same one", () => {
  const document = {};
  const history = histories.newHistory(document);
  for (const same of [
    histories.step(history, document),
    histories.replace(history, document),
    histories.undo(history),
    histories.redo(history),
    histories.amend(history, (any) => any),
  ]) {
    assert.equal(same, history);
  }
});

test("a step after an undo throws away what was undone, and a replacement does not", () => {
  const undone = histories.undo(histories.step(histories.newHistory("first"), "second"));
  assert.deepEqual(histories.step(undone, "other"), { past: ["first"], present: "other", future: [] });
  assert.deepEqual(histories.replace(undone, "selected"), { past: [], present: "selected", future: ["second"] });
});

test("an amendment reaches past and future, and leaves the lists alone that it does not concern", () => {
  const history = { past: ["a", "b"], present: "c", future: ["d"] };
  const past = histories.amend(history, (document) => (document === "a" ? "A" : document));
  assert.deepEqual(past, { past: ["A", "b"], present: "c", future: ["d"] });
  assert.equal(past.future, history.future);
  const future = histories.amend(history, (document) => (document === "d" ? "D" : document));
  assert.deepEqual(future, { past: ["a", "b"], present: "c", future: ["D"] });
  assert.equal(future.past, history.past);
});
