/** Words and examples: as a request, and their instances as objects. */
import assert from "node:assert/strict";
import { test } from "node:test";

import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import * as found from "../../src/triton_sam/service/static/js/core/found.js";
import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { cocoDocument } from "../../src/triton_sam/service/static/js/export/coco.js";
import { objectsOf } from "../../src/triton_sam/service/static/js/export/objects.js";
import { conceptsIn, sentencesFor, withInstances } from "../../src/triton_sam/service/static/js/words/instances.js";
import { takesWords } from "../../src/triton_sam/service/static/js/words/models.js";
import { promptOf, wordsOf } from "../../src/triton_sam/service/static/js/words/prompt.js";
import { drawing, maskOf } from "./helpers.js";

const SIZE = { width: 6, height: 3 };
const LEFT = maskOf(drawing("##....", "##....", "##...."));
const NEARLY_LEFT = maskOf(drawing("##....", "##....", "#....."));
const HALF_LEFT = maskOf(drawing("##....", "#.....", "......"));
const RIGHT = maskOf(drawing("....##", "....##", "......"));
const DOT = maskOf(drawing("......", "......", "...#.."));
const NOTHING = maskOf(drawing("......", "......", "......"));
const COIN = { id: "class-1", name: "coin", colour: "#00ff00" };
const SPOON = { id: "class-2", name: "spoon", colour: "#0000ff" };
const classOf = (words) => ({ coin: COIN, spoon: SPOON })[words] ?? null;
const concept = (words, ...instances) => ({
  words, found: instances.length, instances: instances.map(([mask, score = 0.9]) => ({ mask, score })),
});
const masksOf = ({ things }) => things.map(documents.maskOf);
const coins = (...instances) => withInstances(documents.newDocument(), [concept("coin", ...instances)], classOf);

test("words are told apart by commas of any script, each once, without blanks around them", () => {
  assert.deepEqual(wordsOf(" coin ,red   cup;\nspoon，coin、皿，, "), ["coin", "red cup", "spoon", "皿"]);
  assert.deepEqual(wordsOf(" , \n "), []);
});

test("a word, several, examples, and both as the server reads them, with a threshold below the slider's", () => {
  const like = { box: [1, 2, 30, 40], label: 1 };
  const not = { box: [5, 6, 7, 8], label: 0 };
  const rest = { score_threshold: 0.1, format: "rle" };
  assert.deepEqual(promptOf(["coin"], []), { text: "coin", ...rest });
  assert.deepEqual(promptOf(["coin", "spoon"], []), { text: ["coin", "spoon"], ...rest });
  const exemplars = { exemplars: [like.box, not.box], exemplar_labels: [1, 0] };
  assert.deepEqual(promptOf([], [like, not]), { ...exemplars, ...rest });
  assert.deepEqual(promptOf(["coin"], [not]), { text: "coin", exemplars: [not.box], exemplar_labels: [0], ...rest });
  assert.throws(() => promptOf([], []), /type what to look for/);
  assert.throws(() => promptOf([], [not]), /say also what to look for/);
  assert.throws(() => promptOf(["coin", "spoon"], [like]), /examples go with one word/);
});

test("models say whether they take words", () => {
  const kinds = [["points", "text"], ["points"], undefined].map((prompts) => takesWords({ prompts }));
  assert.deepEqual([...kinds, takesWords(undefined)], [true, false, false, false]);
});

test("an answer's masks belong to their concepts; what is no mask of this image is an error", () => {
  const mask = (data, score, index) => ({ encoding: "rle", data: toCocoRle(data), score, concept: index });
  const result = {
    concepts: [{ text: "coin", presence: 0.9, found: 5, returned: 2 }, { text: "spoon", presence: 0.1, found: 0, returned: 0 }],
    masks: [mask(LEFT, 0.9, 0), mask(RIGHT, 0.3, 0)],
  };
  assert.deepEqual(conceptsIn(result, ["coin", "spoon"], SIZE), [
    { words: "coin", found: 5, instances: [{ mask: LEFT, score: 0.9 }, { mask: RIGHT, score: 0.3 }] },
    { words: "spoon", found: 0, instances: [] },
  ]);
  assert.equal(conceptsIn({ concepts: [{ found: 0 }], masks: [] }, [], SIZE)[0].words, "");
  assert.throws(() => conceptsIn(result, ["coin", "spoon"], { width: 5, height: 3 }), /6 x 3/);
  assert.throws(() => conceptsIn({ ...result, masks: [mask(LEFT, 0.9, 2)] }, ["coin", "spoon"], SIZE));
});

test("instances are found objects with the words as class, and the exported category", () => {
  const document = withInstances(documents.newDocument(), [concept("coin", [LEFT], [RIGHT, 0.4]), concept("spoon", [DOT])], classOf);
  assert.deepEqual(masksOf(document), [LEFT, RIGHT, DOT], "the largest at the bottom");
  assert.deepEqual(document.things.map(({ classId, colour }) => [classId, colour]), [["class-1", "#00ff00"], ["class-1", "#00ff00"], ["class-2", "#0000ff"]]);
  assert.ok(document.things.every(found.isUntouched));
  const shown = found.withFilter(document, { score: 0.5, size: 0 });
  const { annotations, categories } = cocoDocument({ name: "a.png", ...SIZE }, objectsOf(shown, [COIN, SPOON]), [COIN, SPOON]);
  const nameOf = new Map(categories.map(({ id, name }) => [id, name]));
  assert.deepEqual(annotations.map((one) => [nameOf.get(one.category_id), one.area, one.score]), [["coin", 6, 0.9], ["spoon", 1, 0.9]]);
});

test("the same words replace their earlier instances, other words do not, and what was accepted stays", () => {
  const first = coins([LEFT], [RIGHT]);
  const both = withInstances(first, [concept("spoon", [DOT])], classOf);
  assert.deepEqual(masksOf(both), [DOT, LEFT, RIGHT]);
  const accepted = found.accept(both, "object-1");
  const again = withInstances(accepted, [concept("coin", [DOT])], classOf);
  assert.deepEqual(again.things.map(({ id }) => id), ["object-4", "object-3", "object-1"]);
  const everything = found.addFound(documents.newDocument(), [{ mask: LEFT, score: 0.9, colour: "#123456" }], null);
  assert.deepEqual(masksOf(withInstances(everything, [concept("coin", [RIGHT])], classOf)), [RIGHT], "of everything they go");
});

test("what is an object of the class already is not found again", () => {
  const accepted = found.accept(coins([LEFT], [RIGHT]));
  const same = [concept("coin", [NEARLY_LEFT], [HALF_LEFT], [RIGHT])];
  assert.deepEqual(masksOf(withInstances(accepted, same, classOf)), [HALF_LEFT, LEFT, RIGHT]);
  assert.deepEqual(masksOf(withInstances(accepted, [concept("spoon", [LEFT])], classOf)), [LEFT, LEFT, RIGHT], "of another class it is");
  assert.equal(withInstances(accepted, [concept("", [LEFT])], classOf).things.length, 2, "what examples show is of any class");
  assert.deepEqual(masksOf(withInstances(documents.newDocument(), [concept("", [LEFT], [NOTHING])], classOf)), [LEFT], "an empty mask is nothing");
});

test("accepted objects are hidden by no filter; the rest can be dropped", () => {
  const document = found.withFilter(coins([LEFT], [RIGHT, 0.4], [DOT, 0.7]), { score: 0.5, size: 0 });
  const one = found.accept(document, "object-3");
  assert.deepEqual(found.countFound(one), { total: 2, shown: 1 });
  assert.equal(found.accept(one, "object-3"), one);
  assert.deepEqual(masksOf({ things: found.listed(found.withFilter(one, { score: 0.99, size: 0 })) }), [DOT]);
  const all = found.accept(document);
  assert.deepEqual(found.countFound(all), { total: 1, shown: 0 }, "what is hidden is not accepted");
  assert.equal(documents.scoreOf(all.things[0]), 0.9, "scores stay");
  const dropped = found.dropFound(documents.activate(one, "object-1"));
  assert.deepEqual([masksOf(dropped), dropped.activeId], [[DOT], null]);
  assert.equal(found.dropFound(dropped), dropped);
  assert.equal(found.dropFound(documents.activate(one, "object-3")).activeId, "object-3");
});

test("a found instance is refined by clicks as any object", () => {
  const active = documents.activate(coins([LEFT]), "object-1");
  const clicked = documents.addPoint(active, { x: 4, y: 0, label: 1 });
  const answered = documents.answering(documents.promptKey(clicked.things[0]), [{ mask: RIGHT, score: 0.8 }])(clicked);
  assert.deepEqual(masksOf(answered), [maskOf(drawing("##..##", "##..##", "##...."))]);
  assert.equal(found.isUntouched(answered.things[0]), false);
  assert.equal(answered.things[0].classId, "class-1");
});

test("sentences name what is missing, what the slider hides, and what was left out", () => {
  const told = (concepts) => sentencesFor(concepts, 0.5);
  const cut = { ...concept("coin", [LEFT], [RIGHT, 0.2]), found: 350 };
  assert.deepEqual(told([concept("coin", [LEFT])]), { missing: "", counted: "coin: 1 found." });
  assert.equal(told([cut]).missing, "350 were found for coin, and the best 2 are here.");
  assert.deepEqual(told([concept("coin"), concept("spoon", [LEFT, 0.3])]), {
    missing: "No coin found. No spoon with a score of 0.50 or more: lower Least score to see 1 with less.",
    counted: "coin: 0 found. spoon: 0 found.",
  });
  const many = ["a", "b", "c", "d", "e"].map((words) => concept(words));
  assert.equal(told(many).missing, "No a, b, c or 2 others found.");
  assert.equal(told(many.slice(0, 4)).missing, "No a, b, c or 1 other found.");
  assert.equal(told(many.slice(0, 2)).missing, "No a or b found.");
  assert.equal(told([concept("red ".repeat(30).trim())]).missing, `No ${"red ".repeat(10).trim()}… found.`);
  assert.deepEqual(told([concept("")]), { missing: "Nothing like the examples was found.", counted: "Like the examples: 0 found." });
});
