import assert from "node:assert/strict";
import test from "node:test";

import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { AnswerCache, SegmentQueue, candidatesOf } from "../../src/triton_sam/service/static/js/net/segment_queue.js";
import { ImageKeys } from "../../src/triton_sam/service/static/js/net/image_keys.js";
import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { deferred, drawing, fakeEncode, maskOf, settled } from "./helpers.js";

const mask = maskOf(drawing("#.", ".#"));
const result = { masks: [{ data: toCocoRle(mask), score: 0.75 }], timings_ms: { total: 4.5 } };
const never = new AbortController().signal;
const always = () => true;

/** An queue with an image whose key is known, on a server that the test answers. */
function prepared(known = { small: "k1" }) {
  const [segments, encodings] = [[], []];
  const service = {
    encode: fakeEncode(encodings),
    segment: (body, signal) => {
      const answer = deferred();
      segments.push({ body, signal, ...answer });
      return answer.promise;
    },
  };
  const connection = { persist: (request) => request() };
  const images = new ImageKeys(service, connection);
  images.use("small");
  images.open(new Blob(["picture"]), known);
  return { queue: new SegmentQueue(service, connection, images), images, segments, encodings };
}

test("a question goes out with key and model, and its answer comes back with masks and times", async () => {
  const { queue, segments } = prepared();
  const answer = queue.ask({ points: [[1, 2]], labels: [1] }, always, never);
  await settled();
  assert.deepEqual(segments[0].body, { points: [[1, 2]], labels: [1], image_key: "k1", model: "small" });
  assert.equal(segments[0].signal, never);
  segments[0].resolve(result);
  const { candidates, serverMs, roundTripMs, imageKey } = await answer;
  assert.deepEqual(candidates, [{ mask, score: 0.75 }]);
  assert.deepEqual([serverMs, imageKey], [4.5, "k1"]);
  assert.ok(roundTripMs >= 0);
});

test("candidates keep the model's order", () => {
  const masks = [0.2, 0.9, 0.4].map((score) => ({ data: toCocoRle(mask), score }));
  assert.deepEqual(candidatesOf({ masks }).map(({ score }) => score), [0.2, 0.9, 0.4]);
});

test("one question is asked at a time, in order", async () => {
  const { queue, segments } = prepared();
  const answers = [1, 2, 3].map((box) => queue.ask({ box }, always, never));
  for (const asked of [1, 2, 3]) {
    await settled();
    assert.deepEqual(segments.map(({ body }) => body.box), [1, 2, 3].slice(0, asked));
    segments.at(-1).resolve(result);
  }
  assert.equal((await Promise.all(answers)).length, 3);
});

test("a question that fails is told to its queue, and the next one is asked", async () => {
  const { queue, segments } = prepared();
  const first = queue.ask({ box: 1 }, always, never);
  const second = queue.ask({ box: 2 }, always, never);
  await settled();
  const problem = new Problem("internal_error");
  segments[0].reject(problem);
  await assert.rejects(first, (error) => error === problem);
  await settled();
  segments[1].resolve(result);
  assert.equal((await second).serverMs, 4.5);
});

test("what is not wanted any more when its turn comes is not asked", async () => {
  const { queue, segments } = prepared();
  let isWanted = true;
  const first = queue.ask({ box: 1 }, always, never);
  const second = queue.ask({ box: 2 }, () => isWanted, never);
  const third = queue.ask({ box: 3 }, always, never);
  await settled();
  isWanted = false; // undone while the first was on its way
  segments[0].resolve(result);
  assert.equal(await second, null);
  await settled();
  assert.deepEqual(segments.map(({ body }) => body.box), [1, 3]);
  segments[1].resolve(result);
  await Promise.all([first, third]);
});

test("what belongs to a closed image is not asked", async () => {
  const { queue, segments } = prepared();
  const abort = new AbortController();
  abort.abort();
  assert.equal(await queue.ask({ box: 1 }, always, abort.signal), null);
  assert.equal(segments.length, 0);
});

test("a question waits for the encoding", async () => {
  const { queue, segments, encodings } = prepared({});
  const answer = queue.ask({ box: 1 }, always, never);
  await settled();
  assert.equal(segments.length, 0);
  encodings[0].resolve({ image_key: "new" });
  await settled();
  assert.equal(segments[0].body.image_key, "new");
  segments[0].resolve(result);
  assert.equal((await answer).imageKey, "new");
});

test("an image that the server has forgotten is encoded again, and the question asked again", async () => {
  const { queue, images, segments, encodings } = prepared();
  const answer = queue.ask({ box: 1 }, always, never);
  await settled();
  segments[0].reject(new Problem("image_expired"));
  await settled();
  assert.equal(images.key, null);
  assert.equal(encodings.length, 1);
  encodings[0].resolve({ image_key: "k2" });
  await settled();
  assert.deepEqual(segments.map(({ body }) => [body.box, body.image_key]), [[1, "k1"], [1, "k2"]]);
  segments[1].reject(new Problem("image_expired")); // a server that is short of memory may do so again
  await settled();
  encodings[1].resolve({ image_key: "k3" });
  await settled();
  segments[2].resolve(result);
  assert.equal((await answer).imageKey, "k3");
});

test("a question is asked again a few times, ever later, where the image is forgotten each time", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { queue, images, segments, encodings } = prepared({});
  const answer = assert.rejects(queue.ask({ box: 1 }, always, never), { code: "forgetful" });
  for (const [round, pause] of [0, 2000, 4000, 0].entries()) {
    await settled();
    assert.equal(encodings.length, round + 1);
    encodings[round].resolve({ image_key: `k${round}` });
    await settled();
    assert.deepEqual(segments.at(-1).body, { box: 1, image_key: `k${round}`, model: "small" });
    segments[round].reject(new Problem("image_expired"));
    await settled();
    context.mock.timers.tick(pause);
  }
  await answer;
  assert.deepEqual([encodings.length, segments.length, images.state.phase], [4, 4, "refused"]);
});

test("an image that is refused refuses the question, and later ones too", async () => {
  const { queue, encodings } = prepared({});
  const problem = new Problem("too_large");
  const answers = [queue.ask({ box: 1 }, always, never), queue.ask({ box: 2 }, always, never)];
  encodings[0].reject(problem);
  for (const answer of answers) await assert.rejects(answer, (error) => error === problem);
});

test("who chooses another model while one encodes gets that model's answer", async () => {
  const { queue, images, segments, encodings } = prepared({});
  const answer = queue.ask({ box: 1 }, always, never);
  await settled();
  images.use("large");
  await settled();
  assert.deepEqual(encodings.map(({ model, signal }) => [model, signal.aborted]), [["small", true], ["large", false]]);
  assert.equal(segments.length, 0);
  encodings[1].resolve({ image_key: "of large" });
  await settled();
  assert.deepEqual(segments.map(({ body }) => [body.model, body.image_key]), [["large", "of large"]]);
  segments[0].resolve(result);
  assert.equal((await answer).imageKey, "of large");
});

test("who opens another image while one encodes gets no answer for the first", async () => {
  const { queue, images, segments, encodings } = prepared({});
  const abort = new AbortController();
  const first = queue.ask({ box: 1 }, always, abort.signal);
  await settled();
  abort.abort();
  images.open(new Blob(["another"]));
  await assert.rejects(first, { name: "AbortError" });
  const second = queue.ask({ box: 2 }, always, never);
  encodings[1].resolve({ image_key: "k2" });
  await settled();
  assert.deepEqual(segments.map(({ body }) => [body.box, body.image_key]), [[2, "k2"]]);
  segments[0].resolve(result);
  await second;
});

test("recent answers are remembered by image and question, the oldest of many is not", () => {
  const answers = new AnswerCache();
  assert.equal(answers.get("image", "question"), null);
  for (let number = 0; number < 33; number += 1) answers.put("image", `${number}`, [number]);
  assert.equal(answers.get("image", "0"), null);
  for (let number = 1; number < 33; number += 1) assert.deepEqual(answers.get("image", `${number}`), [number]);
  assert.equal(answers.get("another image", "1"), null);
});
