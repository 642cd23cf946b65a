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

test("who forgets a key twice, as a click and the mouse do, sends the image once", async () => {
  const { images, calls } = prepared();
  images.use("small");
  images.open(file, { small: "expired" });
  images.forget("expired");
  images.ready().catch(() => {});
  images.forget("expired");
  images.ready().catch(() => {});
  assert.equal(calls.length, 1);
});

test("forgetting another model's key leaves the encoding alone", async () => {
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

test("who waits for a model while another image is opened is not left waiting", async () => {
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

// -- a server that forgets at once ---------------------------------------------------------------------------------

/** Images whose time the test has in hand, and a server that forgets each key as soon as it was made. */
function forgetful(context) {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  let now = 1000;
  context.mock.method(performance, "now", () => now);
  const all = prepared();
  all.images.use("small");
  all.images.open(file);
  const pass = async (milliseconds) => {
    now += milliseconds;
    context.mock.timers.tick(milliseconds);
    await settled();
  };
  /** The encoding under way ends, its key is forgotten after a while, and somebody asks again. */
  const forgetOnce = async (lived) => {
    const key = `key ${all.calls.length}`;
    all.calls.at(-1).resolve({ image_key: key });
    assert.equal(await all.images.ready(), key);
    await pass(lived);
    all.images.forget(key);
    const asked = all.images.ready();
    asked.catch(() => {});
    await settled();
    return { asked }; // bare, it would be waited for
  };
  return { ...all, pass, forgetOnce };
}

test("where keys are forgotten at once the image is sent again ever later, and then no more", async (context) => {
  const { images, calls, phases, pass, forgetOnce } = forgetful(context);
  await forgetOnce(0);
  assert.equal(calls.length, 2, "once may happen: it is sent again at once");
  for (const [pause, sent] of [[2000, 2], [4000, 3]]) {
    const { asked } = await forgetOnce(0);
    assert.equal(images.ready(), asked, "whoever asks meanwhile waits too");
    await pass(pause - 1);
    assert.equal(calls.length, sent, `before ${pause} ms`);
    await pass(1);
    assert.equal(calls.length, sent + 1, `after ${pause} ms`);
    assert.equal(images.state.phase, "sending");
  }
  const { asked } = await forgetOnce(0);
  const isForgetful = (error) => error instanceof Problem && error.code === "forgetful" && !error.passes;
  await assert.rejects(asked, isForgetful);
  assert.equal(images.state.phase, "refused");
  assert.ok(isForgetful(images.state.error));
  await pass(3_600_000);
  assert.equal(calls.length, 4, "not by itself");
  assert.equal(phases.filter((phase) => phase === "refused").length, 1, "told once");
  images.ready();
  assert.equal(calls.length, 5, "who asks again later means it");
});

test("two who tell of the same key count once", async (context) => {
  const { images, calls, forgetOnce } = forgetful(context);
  await forgetOnce(0);
  for (let teller = 0; teller < 10; teller += 1) images.forget("key 1");
  await forgetOnce(0);
  assert.equal(images.state.phase, "ready", "it rests, and has not given up");
  assert.equal(calls.length, 2);
});

test("a key that lived for more than 30 seconds was forgotten for a good reason", async (context) => {
  const { images, calls, pass, forgetOnce } = forgetful(context);
  for (let round = 1; round <= 10; round += 1) {
    await forgetOnce(30_001);
    assert.equal(calls.length, round + 1, "it is sent again at once");
  }
  for (const pause of [0, 2000, 4000]) {
    await forgetOnce(30_000);
    await pass(pause);
  }
  const sent = calls.length;
  const { asked } = await forgetOnce(30_000);
  await assert.rejects(asked, { code: "forgetful" }, "30 seconds are not long");
  assert.equal(calls.length, sent);
  assert.equal(images.key, null);
});

test("one key that lives long ends the row", async (context) => {
  const { calls, pass, forgetOnce } = forgetful(context);
  for (const pause of [0, 2000, 4000]) {
    await forgetOnce(0);
    await pass(pause);
  }
  await forgetOnce(30_001);
  assert.equal(calls.length, 5, "without a rest");
  await forgetOnce(0);
  assert.equal(calls.length, 6, "and the row begins anew");
  await forgetOnce(0);
  assert.equal(calls.length, 6);
});

test("a key of an earlier visit that is not known any more does not count", async (context) => {
  const { images, calls, forgetOnce } = forgetful(context);
  images.open(new Blob(["another"]), { small: "old" });
  images.forget("old");
  images.ready().catch(() => {});
  assert.equal(calls.length, 2);
  await forgetOnce(0);
  assert.equal(calls.length, 3, "this is the first in the row");
});

test("another image or model begins anew, also after it was given up", async (context) => {
  for (const change of [(images) => images.open(new Blob(["another"])), (images) => images.use("large")]) {
    const { images, calls, pass, forgetOnce } = forgetful(context);
    for (const pause of [0, 2000, 4000, 0]) {
      await forgetOnce(0);
      await pass(pause);
    }
    assert.equal(images.state.phase, "refused");
    change(images);
    assert.equal(images.state.phase, "sending");
    assert.equal(calls.length, 5);
    await forgetOnce(0);
    assert.equal(calls.length, 6, "without a rest");
    context.mock.reset();
    context.mock.timers.reset();
  }
});

test("who opens another image while it rests has that one sent, and the first not again", async (context) => {
  const { images, calls, pass, forgetOnce } = forgetful(context);
  await forgetOnce(0);
  const { asked } = await forgetOnce(0);
  const another = new Blob(["another"]);
  images.open(another);
  assert.equal(calls.length, 3);
  const rejected = assert.rejects(asked, { name: "AbortError" });
  await pass(60_000);
  await rejected;
  assert.deepEqual(calls.map((call) => call.file), [file, file, another]);
  assert.equal(images.state.phase, "sending", "the old one tells nothing any more");
  calls[2].resolve({ image_key: "k" });
  assert.equal(await images.ready(), "k");
});


test("who waits while it rests is told at once that another image was opened", async (context) => {
  const { images, forgetOnce } = forgetful(context);
  await forgetOnce(0);
  const { asked } = await forgetOnce(0);
  let reason = null;
  asked.catch((error) => (reason = error.name));
  images.open(new Blob(["another"]));
  await settled();
  assert.equal(reason, "AbortError");
});
