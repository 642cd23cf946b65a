/** "Show me": regions of answers as objects. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { addRegions, regionsIn, regionsOf } from "../../src/triton_sam/service/static/js/ask/regions.js";
import { showMe } from "../../src/triton_sam/service/static/js/ask/show_me.js";
import { Showing } from "../../src/triton_sam/service/static/js/ask/showing.js";
import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { deferred, drawing, maskOf, settled } from "./helpers.js";

const IMAGE = { width: 6, height: 3 };
const LEFT = maskOf(drawing("###...", "###...", "###..."));
const row = { encoding: "rle", data: toCocoRle(LEFT) };
const things = (regions, document = documents.newDocument()) => addRegions(document, regions).things;

test("boxes and points of an answer become prompts with their masks, so that nothing is asked again", () => {
  const regions = regionsIn({ regions: [
    { label: " a cup ", box: [0.2, 0, 3.4, 9], mask: row, score: 0.9 },
    { label: "a dot", point: [5.9, 7], mask: row, score: 0.7 },
    { label: "thin", box: [4, 1, 4.5, 2] },
    { label: "nowhere" },
  ] }, IMAGE);
  const [cup, dot, thin] = things(regions);
  assert.deepEqual([cup.name, cup.box, documents.maskOf(cup), documents.scoreOf(cup)], ["a cup", [0, 0, 3, 3], LEFT, 0.9]);
  assert.deepEqual([dot.name, dot.points, documents.maskOf(dot)], ["a dot", [{ x: 5, y: 2, label: 1 }], LEFT]);
  assert.deepEqual([cup, dot].map(documents.isWaiting), [false, false]);
  assert.deepEqual([thin.points, documents.isWaiting(thin)], [[{ x: 4, y: 1, label: 1 }], true], "too small a box is its middle, and is asked for");
  assert.equal(regions.length, 3);
  assert.throws(() => regionsIn({ regions: [{ label: "x", point: [1, 1], mask: { data: toCocoRle(maskOf(drawing("#"))) } }] }, IMAGE), /1 x 1/);
});

test("boxes that the answer has are asked for as drawn ones; what is there already is not added again", () => {
  const regions = regionsOf([{ phrase: "a cup", entity: 0, box: [0, 0, 3, 3] }, { phrase: "x".repeat(90), entity: 1, box: [0, 0, 6, 3] }]);
  const document = addRegions(documents.newDocument(), regions);
  assert.deepEqual(document.things.map(({ name, box }) => [name.length, box]), [[5, [0, 0, 3, 3]], [80, [0, 0, 6, 3]]]);
  assert.ok(document.things.every(documents.isWaiting));
  assert.equal(document.activeId, null);
  assert.equal(addRegions(document, regions).things.length, 2);
  const point = { label: "dot", box: null, point: { x: 1, y: 1, label: 1 }, candidate: null };
  assert.equal(things([point, point]).length, 1);
});

class App {
  constructor() {
    this.document = documents.newDocument();
    this.picture = { ...IMAGE, file: new Blob(["pixels"], { type: "image/png" }) };
    this.images = { model: "sam2" };
    this.notices = [];
    this._end = new AbortController();
    this.questionsEnd = this._end.signal;
    this.connection = { persist: (request) => request() };
    this.service = { json: async (path, { body, signal }) => {
      this.asked = { path, ...JSON.parse(await body.text()) };
      this.answer = deferred();
      signal.addEventListener("abort", () => this.answer.reject(signal.reason), { once: true });
      return this.answer.promise;
    } };
  }

  change = (change) => (this.document = change(this.document));
  notice = (kind, text) => this.notices.push(text);
  announce() {}
}

const GROUNDS = { id: "shapes", tasks: ["point", "ground"] };
const turn = { question: "Where is \"it\"?", model: GROUNDS, state: "done" };
const waited = async (done) => {
  while (!done()) await settled();
};

test("a model that can point is asked where it is, with the image and the chosen segmenter", async () => {
  const app = new App();
  const over = showMe(app, turn, [], new AbortController().signal);
  await waited(() => app.answer);
  const image = `data:image/png;base64,${btoa("pixels")}`;
  assert.deepEqual(app.asked, { path: "v1/ground", image, question: turn.question, model: "shapes", segmenter: "sam2", format: "rle" });
  app.answer.resolve({ text: "left", regions: [{ label: "it", box: [0, 0, 3, 3], mask: row, score: 1 }] });
  assert.equal(await over, "");
  assert.deepEqual(app.document.things.map(documents.maskOf), [LEFT]);
});

test("it is offered for boxes, and for models that can point; no region is one sentence; it can be stopped", async () => {
  const app = new App();
  const told = [];
  const showing = new Showing(app, () => told.push(showing.of(turn, [])));
  const box = [{ phrase: "a", entity: 0, box: [0, 0, 3, 3] }];
  assert.equal(showing.of({ ...turn, model: { id: "x" } }, []), "none");
  assert.equal(showing.of({ ...turn, model: { id: "x" } }, box), "offered");
  assert.equal(showing.of({ ...turn, state: "asked" }, box), "none");
  const over = showing.toggle(turn, []);
  await waited(() => app.answer);
  app.answer.resolve({ text: "no", regions: [] });
  await over;
  assert.match(app.notices.at(-1), /^shapes does not say where/);
  assert.deepEqual(told, ["busy", "offered"]);
  app.answer = null;
  const stopped = showing.toggle(turn, []);
  await waited(() => app.answer);
  showing.toggle(turn, []);
  await stopped;
  assert.equal(app.notices.at(-1), "");
  app.answer = null;
  const failed = showing.toggle(turn, []);
  await waited(() => app.answer);
  app.answer.reject(new Problem("invalid_input", "no segmenter is served"));
  await failed;
  assert.deepEqual([app.notices.at(-1), app.document.things], ["No segmenter is served.", []]);
});
