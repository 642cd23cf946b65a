/** A find from the first request to the document, against a server that a test answers. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { App } from "./find_helpers.js";
import { FindSession } from "../../src/triton_sam/service/static/js/find_session.js";
import { listed, withFilter } from "../../src/triton_sam/service/static/js/core/found.js";
import { canRedo, canUndo } from "../../src/triton_sam/service/static/js/core/history.js";
import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { drawing, maskOf, settled } from "./helpers.js";

const MASKS = [maskOf(drawing("#..", "...")), maskOf(drawing("##.", "...")), maskOf(drawing("###", "###"))];
const record = (id, mask) => ({ id, predicted_iou: 0.9, segmentation: toCocoRle(mask) });
const progress = (done, masks, gone = []) => ["progress", { progress: { done, of: 8, masks: masks.length }, masks, gone }];
const result = (...masks) => ["result", { final: true, of: 8, masks: masks.map((mask, index) => record(100 + index, mask)) }];
const OPTIONS = { points_per_side: 16 };

function begun() {
  const app = new App(3, 2);
  const session = new FindSession(app);
  return { app, session, over: session.start(OPTIONS) };
}

test("masks are shown as they come, and become one undo step with the result", async () => {
  const { app, session, over } = begun();
  await settled();
  assert.deepEqual(app.asked, [{ image_key: "key-1", model: "sam2", everything: OPTIONS, format: "rle" }]);
  await app.send(progress(2, [record(0, MASKS[0]), record(1, MASKS[1])]));
  assert.deepEqual(session.state, { phase: "finding", done: 2, of: 8, count: 2 });
  assert.equal(app.document.things.length, 0, "not in the document yet");
  assert.equal(app.shownDocument.things.length, 2);
  await app.send(progress(4, [record(2, MASKS[2])], [0]));
  assert.equal(session.state.count, 2);
  await app.send(result(MASKS[2], MASKS[1], MASKS[0]));
  await over;
  assert.deepEqual(app.document.things.map(({ base }) => base), [MASKS[2], MASKS[1], MASKS[0]]);
  assert.equal(app.history.past.length, 1);
  assert.equal(app.soFar, null);
  assert.deepEqual(session.state, { phase: "idle" });
  assert.equal(app.isClosed, true, "the stream is closed");
});

test("cancelled half-way nothing has changed; what was found so far can be kept", async () => {
  const { app, session, over } = begun();
  await settled();
  await app.send(progress(2, [record(0, MASKS[0])]));
  session.cancel();
  await over;
  assert.equal(app.signal.aborted, true, "the request is aborted");
  assert.equal(app.shownDocument.things.length, 0);
  assert.ok(!canUndo(app.history) && !canRedo(app.history));
  assert.equal(app.notices.at(-1).text, "Cancelled. Nothing was changed.");
  app.notices.at(-1).action.run();
  assert.deepEqual(app.document.things.map(({ base }) => base), [MASKS[0]]);
  assert.equal(app.history.past.length, 1);
});

test("a second find is refused while one is under way, and can follow a cancelled one at once", async () => {
  const { app, session, over } = begun();
  await settled();
  await session.start(OPTIONS);
  assert.equal(app.asked.length, 1);
  session.cancel();
  await over;
  const again = session.start(OPTIONS);
  await settled();
  await app.send(result(MASKS[1]));
  await again;
  assert.equal(app.document.things.length, 1);
  assert.equal(app.asked.length, 2);
});

test("another image ends it silently", async () => {
  const { app, over } = begun();
  await settled();
  await app.send(progress(2, [record(0, MASKS[0])]));
  app.forget();
  await over;
  assert.equal(app.soFar, null);
  assert.deepEqual(app.notices.filter(({ text }) => text), []);
});

test("an image that the server has forgotten is sent again, and the search begins anew", async () => {
  const { app, over } = begun();
  await settled();
  await app.send(progress(2, [record(0, MASKS[0])]));
  await app.send(["error", { error: { code: "image_expired", message: "gone" } }]);
  assert.deepEqual(app.asked.map(({ image_key: key }) => key), ["key-1", "key-2"]);
  await app.send(progress(2, [record(0, MASKS[1])]));
  assert.deepEqual(app.soFar.map(({ mask }) => mask), [MASKS[1]], "nothing of the first search is left");
  await app.send(result(MASKS[1]));
  await over;
  assert.equal(app.document.things.length, 1);
});

test("each failure is one sentence, and the document stays", async () => {
  const failures = [
    [(app) => app.send(["error", { error: { code: "invalid_input", message: "points_per_side is too large" } }]), "Points_per_side is too large."],
    [(app) => app.end(), "The search ended before it was complete. Find again."],
    [(app) => app.fail(new TypeError("network")), "The connection was lost before everything was found. Find again."],
    [(app) => app.send(["progress", { progress: { done: 1, of: 2 }, masks: [record(0, maskOf(drawing("#")))] }]), "The server's masks cannot be read."],
    [(app) => app.sendText("event: result\ndata: {\n\n"), "The server's masks cannot be read."],
  ];
  for (const [fail, text] of failures) {
    const { app, session, over } = begun();
    await settled();
    await fail(app);
    await over;
    assert.equal(app.notices.at(-1).text, text);
    assert.equal(app.document.things.length, 0);
    assert.equal(session.isBusy, false);
  }
});

test("while the server is away one can cancel", async () => {
  const app = new App(3, 2);
  app.problem = new Problem("unavailable");
  const session = new FindSession(app);
  const over = session.start(OPTIONS);
  await settled();
  assert.deepEqual(session.state, { phase: "waiting" });
  session.cancel();
  await over;
  assert.equal(session.isBusy, false);
});

test("an empty result is told", async () => {
  const { app, over } = begun();
  await settled();
  await app.send(result());
  await over;
  assert.match(app.notices.at(-1).text, /^Nothing was found/);
  assert.equal(app.history.past.length, 0);
});

test("the filter of the document applies to what comes", async () => {
  const { app, over } = begun();
  app.history = { ...app.history, present: withFilter(app.document, { score: 0, size: 2 }) };
  await settled();
  await app.send(result(...MASKS));
  await over;
  assert.deepEqual(listed(app.document).map(({ base }) => base), [MASKS[1], MASKS[2]]);
});
