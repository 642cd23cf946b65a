/** The next image is encoded while one works on this one, and its encode is taken over when it is opened. */
import assert from "node:assert/strict";
import test from "node:test";

import { EncodeAhead } from "../../src/triton_sam/service/static/js/net/encode_ahead.js";
import { ImageKeys } from "../../src/triton_sam/service/static/js/net/image_keys.js";
import { Items } from "../../src/triton_sam/service/static/js/project/items.js";
import { fakeEncode, settled } from "./helpers.js";

const files = Object.fromEntries(["a", "b", "c"].map((record) => [record, new Blob([record])]));

/** A list of three images, the first of them open. */
function prepared() {
  const calls = [];
  const service = { encode: fakeEncode(calls) };
  const images = new ImageKeys(service, { persist: (request) => request() });
  const list = new Items();
  list.reset(Object.keys(files).map((record) => ({ record, name: record })), "a");
  const project = Object.assign(new EventTarget(), {
    list,
    store: { readPicture: async (record) => ({ file: files[record], view: null }) },
    keepKey: (record, model, key) => list.change(record, { keys: { ...list.get(record).keys, [model]: key } }),
  });
  const ahead = new EncodeAhead(service, images, project);
  const open = (record) => {
    list.current = record;
    images.open(files[record], list.get(record).keys, ahead.take(record));
  };
  images.use("small");
  open("a");
  return { images, calls, list, project, ahead, open };
}

const answer = async (call, key) => {
  call.resolve({ image_key: key });
  await settled();
};

test("the next image is encoded after the open one is ready, and no further one", async () => {
  const { calls, list, open, images } = prepared();
  await settled();
  assert.deepEqual(calls.map(({ file }) => file), [files.a]);
  await answer(calls[0], "key-a");
  assert.deepEqual(calls.map(({ file }) => file), [files.a, files.b]);
  await answer(calls[1], "key-b");
  assert.equal(calls.length, 2);
  assert.equal(list.get("b").keys.small, "key-b");
  open("b");
  assert.equal(images.state.phase, "ready", "at once");
  await settled();
  assert.deepEqual(calls.map(({ file }) => file), [files.a, files.b, files.c]);
});

test("an encode that is under way is taken over by the image that is opened", async () => {
  const { calls, open, images } = prepared();
  await answer(calls[0], "key-a");
  open("b");
  assert.equal(images.state.phase, "encoding");
  await answer(calls[1], "key-b");
  assert.equal(images.key, "key-b");
  assert.equal(calls.filter(({ file }) => file === files.b).length, 1);
});

test("whoever goes elsewhere cancels it", async () => {
  const { calls, open } = prepared();
  await answer(calls[0], "key-a");
  open("c");
  assert.ok(calls[1].signal.aborted);
  assert.equal(calls[2].file, files.c);
});

test("an encode that was taken over is cancelled when the user goes on", async () => {
  const { calls, open } = prepared();
  await answer(calls[0], "key-a");
  open("b");
  await settled();
  open("c");
  assert.ok(calls[1].signal.aborted);
});

test("after a failure the image is encoded as any other, when it is opened", async () => {
  const { calls, open, project } = prepared();
  await answer(calls[0], "key-a");
  calls[1].reject(new Error("busy"));
  await settled();
  project.dispatchEvent(new Event("items"));
  await settled();
  assert.equal(calls.length, 2, "a busy server is left alone");
  open("b");
  await settled();
  assert.deepEqual(calls.slice(2).map(({ file }) => file), [files.b]);
});

test("a key that the server has forgotten is not taken again from the early encode", async () => {
  const { calls, open, images } = prepared();
  await answer(calls[0], "key-a");
  await answer(calls[1], "key-b");
  open("b");
  images.forget("key-b");
  images.ready();
  await settled();
  assert.equal(calls.filter(({ file }) => file === files.b).length, 2);
});

test("another model encodes both anew", async () => {
  const { calls, images } = prepared();
  await answer(calls[0], "key-a");
  images.use("large");
  await settled();
  await answer(calls.at(-1), "key-a-large");
  assert.ok(calls[1].signal.aborted);
  assert.deepEqual(calls.slice(2).map(({ file, model }) => [file, model]), [[files.a, "large"], [files.b, "large"]]);
});

test("an image that gets another picture is encoded anew, and the key of the old picture is not kept", async () => {
  const { calls, list, project } = prepared();
  await answer(calls[0], "key-a");
  project.dispatchEvent(new CustomEvent("redrawing", { detail: "b" }));
  assert.ok(calls[1].signal.aborted);
  await settled();
  assert.deepEqual(list.get("b").keys, {});
  project.dispatchEvent(new Event("items"));
  await settled();
  assert.equal(calls.filter(({ file }) => file === files.b).length, 2);
});
