/** Words from the request to the document, against a server that a test answers. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { addClass, classNamed, classOf, mergeClasses, newClasses } from "../../src/triton_sam/service/static/js/core/classes.js";
import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import { accept, countFound, withFilter } from "../../src/triton_sam/service/static/js/core/found.js";
import { amend, newHistory, step, undo } from "../../src/triton_sam/service/static/js/core/history.js";
import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { Examples } from "../../src/triton_sam/service/static/js/words/examples.js";
import { WordsSession } from "../../src/triton_sam/service/static/js/words/session.js";
import { deferred, drawing, maskOf, settled } from "./helpers.js";

const LEFT = maskOf(drawing("##....", "##....", "##...."));
const RIGHT = maskOf(drawing("....##", "....##", "......"));

class App extends EventTarget {
  constructor() {
    super();
    this.picture = { width: 6, height: 3 };
    this.models = [{ id: "sam3", title: "a model of drawings" }];
    this.history = newHistory(documents.newDocument());
    this.asked = [];
    this.notices = [];
    this.said = [];
    this._end = new AbortController();
    this._key = 1;
    this.images = { model: "sam3", ready: async () => `key-${this._key}`, forget: () => (this._key += 1) };
    this.connection = { persist: (request) => request() };
    this.service = { json: (path, options) => this._ask(path, options) };
    this.known = addClass(newClasses(), "cell");
    this.classes = {
      active: null,
      of: (id) => classOf(this.known, id),
      merge: (others) => {
        const { classes, ids } = mergeClasses(this.known, others);
        this.known = classes;
        return new Map(others.map(({ name }, index) => [name, classOf(classes, ids[index])]));
      },
    };
  }

  get document() {
    return this.history.present;
  }

  get questionsEnd() {
    return this._end.signal;
  }

  change = (change) => (this.history = step(this.history, change(this.document)));
  adjust = this.change;
  amend = (change) => (this.history = amend(this.history, change));
  notice = (kind, text) => this.notices.push(text);
  announce = (text) => this.said.push(text);
  forget = () => this._end.abort(new DOMException("another image", "AbortError"));

  async _ask(path, { body, signal }) {
    const answer = deferred();
    signal.addEventListener("abort", () => answer.reject(signal.reason), { once: true });
    this.asked.push({ path, ...JSON.parse(body) });
    this.answer = answer;
    return answer.promise;
  }
}

const answerOf = (...concepts) => ({
  concepts: concepts.map((instances) => ({ found: instances.length, returned: instances.length })),
  masks: concepts.flatMap((instances, concept) => instances.map(([mask, score]) => ({ data: toCocoRle(mask), score, concept }))),
});

async function begun(text, app = new App(), all = []) {
  const session = new WordsSession(app, { all });
  const over = session.find(text);
  await settled();
  return { app, session, over };
}

async function answered(text, answer, app) {
  const { over, ...rest } = await begun(text, app);
  rest.app.answer.resolve(answer);
  await over;
  return rest;
}

test("one question, one undo step, and a class for each word of which there is something", async () => {
  const { app, session, over } = await begun("coin, spoon");
  const fields = { text: ["coin", "spoon"], score_threshold: 0.1, format: "rle" };
  assert.deepEqual(app.asked, [{ path: "v1/segment", ...fields, image_key: "key-1", model: "sam3" }]);
  assert.deepEqual(session.words, ["coin", "spoon"]);
  app.answer.resolve(answerOf([[LEFT, 0.9], [RIGHT, 0.3]], []));
  await over;
  assert.equal(session.isBusy, false);
  assert.deepEqual(countFound(app.document), { total: 2, shown: 1 }, "what is below the default is hidden, not asked for again");
  assert.ok(app.document.things.every(({ classId }) => classId === classNamed(app.known, "coin").id));
  assert.equal(classNamed(app.known, "spoon"), null);
  assert.equal(app.notices.at(-1), "No spoon found.");
  assert.deepEqual(app.said, ["coin: 1 found. spoon: 0 found."]);
  assert.equal(undo(app.history).present.things.length, 0);
});

test("the threshold that was chosen for words stays with the next ones", async () => {
  const { app } = await answered("coin", answerOf([[LEFT, 0.9]]));
  app.amend((document) => withFilter(document, { score: 0.2, size: 3 }));
  await answered("spoon", answerOf([[RIGHT, 0.3]]), app);
  assert.deepEqual(app.document.filter, { score: 0.2, size: 3 });
  assert.deepEqual(countFound(app.document), { total: 2, shown: 2 });
});

test("where nothing is found it says what the model is; where all is known, that it is", async () => {
  const { app } = await answered("coin, spoon", answerOf([], []));
  assert.equal(app.notices.at(-1), "No coin or spoon found. sam3 is a model of drawings.");
  await answered("coin", answerOf([[LEFT, 0.9]]), app);
  assert.equal(app.notices.at(-1), "");
  app.amend((document) => accept(document));
  await answered("coin", answerOf([[LEFT, 0.9]]), app);
  assert.equal(app.notices.at(-1), "What was found is there already.");
});

test("cancelled, it has changed nothing, and the request is over; another image ends it silently", async () => {
  const { app, session, over } = await begun("coin");
  session.cancel();
  await over;
  assert.equal(app.notices.at(-1), "Cancelled. Nothing was changed.");
  assert.equal(app.history.past.length, 0);
  const other = await begun("coin");
  other.app.forget();
  await other.over;
  assert.deepEqual(other.app.notices.filter(Boolean), []);
  assert.equal(other.session.isBusy, false);
});

test("what goes wrong is one sentence; an image that the server has forgotten is sent again", async () => {
  const { app, over } = await begun("coin");
  app.answer.reject(new Problem("image_expired"));
  await settled();
  assert.deepEqual(app.asked.map(({ image_key: key }) => key), ["key-1", "key-2"]);
  app.answer.reject(new Problem("invalid_input", "the text has 40 tokens and 32 are allowed: use a few words"));
  await over;
  assert.equal(app.notices.at(-1), "The text has 40 tokens and 32 are allowed: use a few words.");
  const { app: odd } = await answered("coin", { concepts: [{}], masks: [{ data: {}, score: 1, concept: 0 }] });
  assert.equal(odd.notices.at(-1), "The server's masks cannot be read.");
  const { app: empty } = await begun(" , ");
  assert.deepEqual([empty.notices.at(-1), empty.asked], ["Type what to look for, or give an example of it.", []]);
});

// -- examples ------------------------------------------------------------------------------------------------------

function withExamples() {
  const app = new App();
  const examples = new Examples(app, { marks: [], refreshMarks() {} });
  return { app, examples };
}

test("a box that is nothing else becomes an example; an object stays, and lends its bounds", async () => {
  const { app, examples } = withExamples();
  app.change((document) => documents.addBox(document, [0, 0, 3, 3]));
  examples.add(1);
  assert.deepEqual([examples.all, app.document.things], [[{ box: [0, 0, 3, 3], label: 1, classId: null }], []]);
  app.change((document) => documents.paint(document, RIGHT, false));
  examples.add(0);
  assert.deepEqual(examples.all.at(-1), { box: [4, 0, 6, 2], label: 0, classId: null });
  assert.deepEqual([app.document.things.length, app.document.activeId], [1, null]);
  examples.remove(0);
  assert.equal(examples.all.length, 1);
  app.dispatchEvent(new Event("picture"));
  assert.deepEqual(examples.all, []);
});

test("without an object there is a sentence; the same box is one example", () => {
  const { app, examples } = withExamples();
  examples.add(0);
  assert.match(app.notices.at(-1), /^Draw a box around one, .* press Not this\.$/);
  for (const label of [1, 0]) {
    app.change((document) => documents.addBox(document, [0, 0, 3, 3]));
    examples.add(label);
  }
  assert.deepEqual(examples.all, [{ box: [0, 0, 3, 3], label: 0, classId: null }]);
});

test("what was found and is not meant is dropped, and shows what is not meant", async () => {
  const { app, examples } = withExamples();
  await answered("coin", answerOf([[LEFT, 0.9], [RIGHT, 0.8]]), app);
  app.adjust((document) => documents.activate(document, document.things[1].id));
  examples.add(0);
  assert.deepEqual([app.document.things.map(({ base }) => base), examples.all], [[LEFT], [{ box: [4, 0, 6, 2], label: 0, classId: classNamed(app.known, "coin").id }]]);
  const { over } = await begun("coin", app, examples.all);
  assert.deepEqual(app.asked.at(-1).exemplars, [[4, 0, 6, 2]]);
  app.answer.resolve(answerOf([]));
  await over;
});

test("what is like an object has its class, and is no second object where there is one", async () => {
  const { app, examples } = withExamples();
  await answered("coin", answerOf([[LEFT, 0.9]]), app);
  app.adjust((document) => documents.activate(accept(document), document.things[0].id));
  examples.add(1);
  const { over } = await begun("", app, examples.all);
  app.answer.resolve(answerOf([[LEFT, 0.9], [RIGHT, 0.8]]));
  await over;
  assert.deepEqual(app.document.things.map(({ base }) => base), [RIGHT, LEFT]);
  assert.ok(app.document.things.every(({ classId }) => classId === classNamed(app.known, "coin").id));
});
