import assert from "node:assert/strict";
import test from "node:test";

import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import * as histories from "../../src/triton_sam/service/static/js/core/history.js";
import { answered, oneClick, point } from "./document_helpers.js";
import { bitmapOfMask, drawing, maskOf, oneOf, randomBitmapOf, randomNumbers } from "./helpers.js";

const points = (document) => documents.activeThing(document).points;
const ids = (document) => document.things.map(({ id }) => id);

/** Three objects, the last active. */
function threeThings() {
  let document = documents.newDocument();
  for (const corner of [1, 2, 3]) document = documents.addBox(document, [0, 0, corner, corner]);
  return document;
}

/** Whoever changes one in place finds out. Typed arrays cannot be frozen. */
function frozen(value) {
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value) || Object.isFrozen(value)) return value;
  for (const part of Object.values(Object.freeze(value))) frozen(part);
  return value;
}

// -- points and boxes ----------------------------------------------------------------------------------------------

test("the first click begins an object, and the next ones refine it", () => {
  const first = oneClick();
  assert.deepEqual(ids(first), ["object-1"]);
  assert.equal(documents.activeThing(first).name, "Object 1");
  const second = documents.addPoint(first, point(3, 4, 0));
  assert.deepEqual(points(second), [point(1, 2), point(3, 4, 0)]);
  assert.deepEqual(points(first), [point(1, 2)]);
  const other = documents.addPoint(documents.activate(second, null), point(5, 6));
  assert.deepEqual(ids(other), ["object-1", "object-2"]);
  assert.deepEqual(points(other), [point(5, 6)]);
});

test("a first click that takes away does nothing", () => {
  const document = documents.newDocument();
  assert.equal(documents.addPoint(document, point(1, 2, 0)), document);
  assert.equal(documents.hovered(document, point(1, 2, 0)), null);
});

test("what was only painted cannot be taken away from by a click: the model knows nothing of it", () => {
  const painted = documents.paint(documents.newDocument(), maskOf(drawing("#.")), false);
  const hidden = documents.describe(painted, "object-1", { visible: false });
  for (const document of [painted, hidden]) assert.equal(documents.addPoint(document, point(1, 0, 0)), document);
  const clicked = documents.addPoint(painted, point(1, 0));
  assert.deepEqual(points(clicked), [point(1, 0)], "a click that adds asks the model");
  assert.deepEqual(points(documents.addPoint(clicked, point(0, 0, 0))), [point(1, 0), point(0, 0, 0)]);
  const boxed = documents.addBox(painted, [0, 0, 2, 1]);
  assert.deepEqual(points(documents.addPoint(boxed, point(0, 0, 0))), [point(0, 0, 0)], "a box is a prompt too");
});

test("a click that would do nothing has no preview, on what was only painted too", () => {
  const painted = documents.paint(documents.newDocument(), maskOf(drawing("#.")), false);
  assert.equal(documents.hovered(painted, point(1, 0, 0)), null);
});

test("a box begins an object of its own, also while another is active", () => {
  const document = documents.addBox(oneClick(), [1, 2, 30, 40]);
  assert.deepEqual(ids(document), ["object-1", "object-2"]);
  assert.deepEqual(documents.activeThing(document).box, [1, 2, 30, 40]);
  assert.deepEqual(documents.activeThing(document).points, []);
});

test("a number is not given twice, and colours differ", () => {
  const document = documents.addBox(documents.remove(threeThings(), "object-3"), [0, 0, 4, 4]);
  assert.deepEqual(ids(document), ["object-1", "object-2", "object-4"]);
  assert.equal(new Set(document.things.map(({ colour }) => colour)).size, 3);
});

test("a hidden object is seen again when it is clicked or painted", () => {
  const hidden = documents.describe(oneClick(), "object-1", { visible: false });
  assert.equal(documents.activeThing(hidden).visible, false);
  assert.equal(documents.activeThing(documents.addPoint(hidden, point(3, 3))).visible, true);
  const stroke = maskOf(drawing("#.", ".."));
  for (const erases of [true, false]) {
    assert.equal(documents.activeThing(documents.paint(hidden, stroke, erases)).visible, true);
  }
});

test("a preview is the object after the click, and leaves the document alone", () => {
  const document = frozen(oneClick());
  const click = point(7, 8, 0);
  assert.deepEqual(documents.hovered(document, click), documents.activeThing(documents.addPoint(document, click)));
  assert.equal(points(document).length, 1);
});

// -- the list ------------------------------------------------------------------------------------------------------

test("where nothing changes, the document is the same one", () => {
  const document = threeThings();
  const { name, colour, visible } = document.things[0];
  for (const same of [
    documents.choose(document, "object-1", null),
    documents.choose(document, "none", 2),
    documents.describe(document, "object-1", { name, colour, visible }),
    documents.describe(document, "none", { name: "x" }),
    documents.remove(document, "none"),
    documents.move(document, "none", 1),
    documents.move(document, "object-3", 1),
    documents.move(document, "object-1", -1),
    documents.activate(document, "object-3"),
    documents.answering("another question", [])(document),
  ]) {
    assert.equal(same, document);
  }
});

test("an object moves up and down among the others, and stays active", () => {
  const document = threeThings();
  assert.deepEqual(ids(documents.move(document, "object-1", 1)), ["object-2", "object-1", "object-3"]);
  assert.deepEqual(ids(documents.move(document, "object-1", 2)), ["object-2", "object-3", "object-1"]);
  assert.deepEqual(ids(documents.move(document, "object-3", -2)), ["object-3", "object-1", "object-2"]);
  assert.equal(documents.move(document, "object-3", -2).activeId, "object-3");
});

test("who removes the active object has none active; who removes another keeps it", () => {
  const document = threeThings();
  assert.equal(documents.remove(document, "object-3").activeId, null);
  const other = documents.remove(document, "object-1");
  assert.equal(other.activeId, "object-3");
  assert.deepEqual(ids(other), ["object-2", "object-3"]);
});

test("a change of one object leaves the others the same ones", () => {
  const document = threeThings();
  const changed = documents.describe(document, "object-2", { name: "nucleus", colour: "#010203" });
  assert.equal(changed.things[0], document.things[0]);
  assert.equal(changed.things[2], document.things[2]);
  assert.deepEqual([changed.things[1].name, changed.things[1].colour], ["nucleus", "#010203"]);
});

test("whatever is done, ids stay unique, the active object is there, and nothing is changed in place", () => {
  const random = randomNumbers(41);
  const stroke = () => maskOf(randomBitmapOf(random, 5, 4));
  const any = (document) => oneOf(random, [...ids(document), "none"]);
  const moves = [
    (document) => documents.addPoint(document, point(1, 1, oneOf(random, [0, 1]))),
    (document) => documents.addBox(document, [0, 0, 3, 3]),
    (document) => documents.paint(document, stroke(), random() < 0.5),
    (document) => documents.choose(document, any(document), oneOf(random, [null, 0, 1, 2])),
    (document) => documents.describe(document, any(document), { visible: random() < 0.5 }),
    (document) => documents.remove(document, any(document)),
    (document) => documents.move(document, any(document), oneOf(random, [-1, 1])),
    (document) => documents.activate(document, oneOf(random, [...ids(document), null])),
    (document) => {
      const waiting = document.things.find(documents.isWaiting);
      if (!waiting) return document;
      return documents.answering(documents.promptKey(waiting), [{ mask: stroke(), score: random() }])(document);
    },
  ];
  for (let round = 0; round < 100; round += 1) {
    let document = documents.newDocument();
    for (let turn = 0; turn < 40; turn += 1) {
      document = frozen(oneOf(random, moves)(document));
      assert.equal(new Set(ids(document)).size, document.things.length);
      assert.ok(document.activeId === null || documents.activeThing(document)?.id === document.activeId);
      for (const thing of document.things) {
        const painted = [thing.added, thing.removed].filter(Boolean).map((mask) => bitmapOfMask(mask).data);
        if (painted.length === 2) {
          assert.ok(painted[0].every((value, index) => !value || !painted[1][index]), "painted and erased overlap");
        }
        assert.equal(documents.maskOf(thing), documents.maskOf(thing), "a mask is made once");
      }
    }
  }
});

// -- what is asked -------------------------------------------------------------------------------------------------

test("one point asks for several masks; more points or a box ask for one; a pick asks for several again", () => {
  const several = (document) => documents.promptOf(documents.activeThing(document)).multimask;
  assert.equal(several(oneClick()), true);
  const two = documents.addPoint(oneClick(), point(3, 4));
  assert.equal(several(two), false);
  assert.equal(several(documents.choose(two, "object-1", 1)), true);
  const box = documents.addBox(documents.newDocument(), [0, 0, 5, 5]);
  assert.equal(several(box), false);
  assert.equal(several(documents.addPoint(box, point(1, 1))), false);
  assert.equal(several(documents.choose(box, "object-1", 0)), true);
});

test("a prompt has the points with their labels and the box, each only where there is one", () => {
  const clicked = documents.addPoint(oneClick(), point(3, 4, 0));
  assert.deepEqual(documents.promptOf(documents.activeThing(clicked)), {
    multimask: false,
    format: "rle",
    points: [[1, 2], [3, 4]],
    labels: [1, 0],
  });
  const box = documents.addBox(documents.newDocument(), [0, 1, 5, 6]);
  const prompt = { multimask: false, format: "rle", box: [0, 1, 5, 6] };
  assert.deepEqual(documents.promptOf(documents.activeThing(box)), prompt);
});

test("equal questions have equal keys, whatever the objects are called; others have others", () => {
  const key = (document) => documents.promptKey(documents.activeThing(document));
  const one = oneClick();
  const again = documents.addPoint(documents.activate(one, null), point(1, 2));
  assert.equal(key(again), key(one));
  assert.equal(key(documents.describe(one, "object-1", { name: "x", colour: "#000000", visible: false })), key(one));
  assert.equal(key(documents.paint(one, maskOf(drawing("#")), false)), key(one));
  const others = [
    documents.addPoint(documents.newDocument(), point(2, 1)),
    documents.addPoint(one, point(1, 2)),
    documents.addPoint(one, point(1, 2, 0)),
    documents.addBox(one, [1, 2, 3, 4]),
    documents.addPoint(documents.addBox(one, [1, 2, 3, 4]), point(1, 2)),
  ];
  assert.equal(new Set([one, ...others].map(key)).size, 1 + others.length);
});

test("what is only painted asks nothing and waits for nothing", () => {
  const document = documents.paint(documents.newDocument(), maskOf(drawing("#.")), false);
  const thing = documents.activeThing(document);
  assert.equal(documents.hasPrompt(thing), false);
  assert.equal(documents.isWaiting(thing), false);
  assert.equal(documents.answering(documents.promptKey(thing), [])(document), document);
});

test("an object waits until the newest of its questions is answered", () => {
  const isWaiting = (document) => documents.isWaiting(documents.activeThing(document));
  const first = oneClick();
  const second = documents.addPoint(first, point(3, 4));
  const candidates = [{ mask: maskOf(drawing("#.")), score: 1 }];
  const late = documents.answering(documents.promptKey(documents.activeThing(first)), candidates);
  assert.equal(isWaiting(first), true);
  assert.equal(isWaiting(late(first)), false);
  assert.equal(late(second), second);
  assert.equal(isWaiting(documents.addPoint(late(first), point(3, 4))), true, "the earlier answer is shown, but old");
  assert.notEqual(documents.maskOf(documents.activeThing(documents.addPoint(late(first), point(3, 4)))), null);
});

// -- answers -------------------------------------------------------------------------------------------------------

test("an answer goes to all who ask the question, and what documents share stays shared", () => {
  const clicked = oneClick();
  const renamed = documents.describe(clicked, "object-1", { name: "nucleus" });
  const boxed = documents.addBox(clicked, [0, 0, 4, 4]);
  const history = [clicked, renamed, boxed].reduce(histories.step, histories.newHistory(documents.newDocument()));
  const candidates = [{ mask: maskOf(drawing("#.")), score: 1 }];
  const answer = documents.answering(documents.promptKey(clicked.things[0]), candidates);
  const amended = histories.amend(history, answer);
  assert.equal(amended.past[0], history.past[0], "an empty document is the same one");
  const [first, second, third] = [amended.past[1], amended.past[2], amended.present];
  for (const document of [first, second, third]) {
    assert.equal(document.things[0].answer.candidates, candidates);
    assert.equal(documents.isWaiting(document.things[0]), false);
  }
  assert.equal(third.things[0], first.things[0], "an object of two documents is still one");
  assert.equal(second.things[0].name, "nucleus");
  assert.equal(third.things[1], boxed.things[1], "who asks something else is the same one");
  assert.equal(histories.amend(amended, answer), amended, "the same answer again changes nothing");
});

test("answers keep sharing in any history", () => {
  const random = randomNumbers(42);
  for (let round = 0; round < 100; round += 1) {
    let history = histories.newHistory(documents.newDocument());
    for (let turn = 0; turn < 25; turn += 1) {
      const { present } = history;
      const place = oneOf(random, [point(1, 1), point(2, 2)]);
      const next = oneOf(random, [
        () => histories.step(history, documents.addPoint(present, place)),
        () => histories.step(history, documents.addPoint(documents.activate(present, null), place)),
        () => histories.step(history, documents.describe(present, oneOf(random, ids(present)), { name: `${turn}` })),
        () => histories.undo(history),
      ]);
      history = next();
    }
    const all = ({ past, present, future }) => [...past, present, ...future];
    const things = all(history).flatMap((document) => document.things);
    if (!things.length) continue;
    const key = documents.promptKey(oneOf(random, things));
    const amended = histories.amend(history, documents.answering(key, []));
    const withAnswer = all(amended).flatMap((document) => document.things);
    const partners = new Map();
    things.forEach((thing, index) => {
      const asksIt = documents.promptKey(thing) === key;
      assert.equal(withAnswer[index] === thing, !asksIt);
      assert.equal(withAnswer[index].answer !== null, asksIt);
      if (!partners.has(thing)) partners.set(thing, withAnswer[index]);
      assert.equal(partners.get(thing), withAnswer[index]);
    });
    assert.equal(new Set(withAnswer).size, new Set(things).size);
  }
});

test("the best score is chosen, the first of equals, unless a person has chosen", () => {
  const candidates = [0.5, 0.9, 0.9].map((score) => ({ mask: null, score }));
  assert.equal(documents.chosen(candidates, null), candidates[1]);
  assert.equal(documents.chosen(candidates, 0), candidates[0]);
  assert.equal(documents.chosen(candidates, 2), candidates[2]);
  assert.equal(documents.chosen(candidates.slice(0, 1), 2), candidates[0], "the model gave fewer than were asked for");
  for (const none of [[], null, undefined]) assert.equal(documents.chosen(none, 0), null);
});
