import assert from "node:assert/strict";
import test from "node:test";

import { ImageKeys } from "../../src/triton_sam/service/static/js/net/image_keys.js";
import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { fakeEncode, settled } from "./helpers.js";

const file = new Blob(["picture"]);

function prepared() {
  const calls = [];
  const connection = { persist: (request) => request() };
  const images = new ImageKeys({ encode: fakeEncode(calls) }, connection);
  const phases = [];
  images.addEventListener("state", () => phases.push(images.state.phase));
  return { images, calls, phases, connection };
}

test("an image is sent as soon as it and the model are there, in either order", () => {
  for (const steps of [["open", "use"], ["use", "open"]]) {
    const { images, calls } = prepared();
    for (const step of steps) {
      assert.equal(calls.length, 0);
      images[step](step === "open" ? file : "small");
    }
    assert.deepEqual(calls.map(({ file, model }) => [file, model]), [[file, "small"]]);
  }
});

test("whoever asks meanwhile waits for the one encoding", async () => {
  const { images, calls, phases } = prepared();
  images.open(file);
  images.use("small");
  const asked = [images.ready(), images.ready(), images.ready()];
  assert.equal(images.key, null);
  calls[0].resolve({ image_key: "k1" });
  assert.deepEqual(await Promise.all(asked), ["k1", "k1", "k1"]);
  assert.equal(await images.ready(), "k1");
  assert.equal(images.key, "k1");
  assert.deepEqual(images.known, { small: "k1" });
  assert.equal(calls.length, 1);
  assert.equal(phases.at(-1), "ready");
});

test("whoever asks before image and model are there gets the key when they are", async () => {
  const { images, calls } = prepared();
  const asked = [images.ready(), images.ready()];
  images.use("small");
  images.open(file);
  await settled();
  calls[0].resolve({ image_key: "k1" });
  assert.deepEqual(await Promise.all(asked), ["k1", "k1"]);
  assert.equal(calls.length, 1);
});

test("the state tells how much was sent, and then that it is being encoded", async () => {
  const { images, calls } = prepared();
  images.use("small");
  images.open(file);
  assert.deepEqual(images.state, { phase: "sending", share: 0 });
  calls[0].onSent(0.5);
  assert.deepEqual(images.state, { phase: "sending", share: 0.5 });
  calls[0].onSent(1);
  assert.equal(images.state.phase, "encoding");
  assert.ok(images.state.since <= performance.now());
  calls[0].resolve({ image_key: "k1" });
  await images.ready();
  assert.deepEqual(images.state, { phase: "ready" });
});

test("another model aborts the encoding and begins its own", async () => {
  const { images, calls } = prepared();
  images.open(file);
  images.use("small");
  const first = images.ready();
  images.use("large");
  await assert.rejects(first, { name: "AbortError" });
  assert.equal(calls[0].signal.aborted, true);
  assert.deepEqual(calls.map(({ model }) => model), ["small", "large"]);
  calls[0].onSent(1);
  assert.equal(images.state.phase, "sending", "the old one tells nothing any more");
  calls[1].resolve({ image_key: "k2" });
  assert.equal(await images.ready(), "k2");
  assert.deepEqual(images.known, { large: "k2" });
});

test("a key that comes after its encoding was aborted is not taken", async () => {
  const { images, calls, connection } = prepared();
  connection.persist = async (request) => {
    await request().catch(() => {});
    return { image_key: "late" };
  };
  images.open(file);
  images.use("small");
  images.use("large");
  connection.persist = (request) => request();
  images.open(new Blob(["another"]));
  await settled();
  assert.deepEqual(images.known, {});
  assert.equal(images.state.phase, "sending");
  calls.at(-1).resolve({ image_key: "right" });
  assert.equal(await images.ready(), "right");
});

test("the model that is in use already begins nothing", () => {
  const { images, calls } = prepared();
  images.open(file);
  images.use("small");
  images.use("small");
  assert.equal(calls.length, 1);
  assert.equal(calls[0].signal.aborted, false);
});

test("back at a model whose key is known nothing is sent", async () => {
  const { images, calls } = prepared();
  images.open(file);
  for (const model of ["small", "large"]) {
    images.use(model);
    calls.at(-1).resolve({ image_key: `key of ${model}` });
    await images.ready();
  }
  images.use("small");
  assert.equal(images.key, "key of small");
  assert.equal(images.state.phase, "ready");
  assert.equal(await images.ready(), "key of small");
  assert.equal(calls.length, 2);
});

test("keys of an earlier visit are used, and those given are not changed", async () => {
  const { images, calls, phases } = prepared();
  const known = { small: "kept" };
  images.use("small");
  images.open(file, known);
  assert.equal(await images.ready(), "kept");
  assert.equal(calls.length, 0);
  assert.equal(phases.at(-1), "ready");
  images.use("large");
  calls[0].resolve({ image_key: "new" });
  await images.ready();
  assert.deepEqual(images.known, { small: "kept", large: "new" });
  assert.deepEqual(known, { small: "kept" });
});

test("another image has none of the keys", () => {
  const { images, calls } = prepared();
  images.use("small");
  images.open(file, { small: "kept" });
  images.open(new Blob(["another"]));
  assert.equal(images.key, null);
  assert.equal(calls.length, 1);
});

test("a forgotten key is not used again: the image is sent once more when somebody asks", async () => {
  const { images, calls } = prepared();
  images.open(file);
  images.use("small");
  calls[0].resolve({ image_key: "k1" });
  await images.ready();
  images.forget("k1");
  assert.equal(images.key, null);
  assert.equal(calls.length, 1);
  const asked = [images.ready(), images.ready()];
  assert.equal(calls.length, 2);
  calls[1].resolve({ image_key: "k2" });
  assert.deepEqual(await Promise.all(asked), ["k2", "k2"]);
});

test("forgetting one key leaves those of other models", () => {
  const { images } = prepared();
  images.use("small");
  images.open(file, { small: "a", large: "b" });
  images.forget("b");
  assert.deepEqual(images.known, { small: "a" });
  images.forget("unknown");
  assert.equal(images.key, "a");
});

const SENT_TWICE = { todo: "whoever asks after forget() begins another encoding" };

test("who forgets a key twice, as a click and the mouse do, sends the image once", SENT_TWICE, async () => {
  const { images, calls } = prepared();
  images.use("small");
  images.open(file, { small: "expired" });
  images.forget("expired");
  images.ready().catch(() => {});
  images.forget("expired");
  images.ready().catch(() => {});
  assert.equal(calls.length, 1);
});

test("forgetting another model's key leaves the encoding alone", SENT_TWICE, async () => {
  const { images, calls } = prepared();
  images.use("small");
  images.open(file, { small: "expired" });
  images.use("large");
  images.forget("expired");
  images.ready().catch(() => {});
  assert.equal(calls.length, 1);
});

test("a refused image is told through the state and to whoever asks, and is not sent again", async () => {
  const { images, calls } = prepared();
  const problem = new Problem("too_large", "the image has too much");
  images.use("small");
  images.open(file);
  calls[0].reject(problem);
  await assert.rejects(images.ready(), (error) => error === problem);
  assert.deepEqual(images.state, { phase: "refused", error: problem });
  await assert.rejects(images.ready(), (error) => error === problem);
  assert.equal(calls.length, 1);
  images.open(new Blob(["smaller"]));
  calls[1].resolve({ image_key: "k2" });
  assert.equal(await images.ready(), "k2");
});

test("a closed image aborts its encoding, and there is no key", async () => {
  const { images, calls } = prepared();
  images.use("small");
  images.open(file);
  const asked = images.ready();
  images.open(null);
  await assert.rejects(asked, { name: "AbortError" });
  assert.equal(calls.length, 1);
  assert.deepEqual([images.key, images.state.phase], [null, "none"]);
});

const LEFT_WAITING = { todo: "the first promise never settles" };

test("who waits for a model while another image is opened is not left waiting", LEFT_WAITING, async () => {
  const { images, calls } = prepared();
  images.open(file);
  let isSettled = false;
  images.ready().finally(() => (isSettled = true)).catch(() => {});
  images.open(new Blob(["another"]));
  const second = images.ready();
  images.use("small");
  calls[0].resolve({ image_key: "k" });
  assert.equal(await second, "k");
  await settled();
  assert.ok(isSettled);
});
