import assert from "node:assert/strict";
import test from "node:test";

import { EventStream } from "../../src/triton_sam/service/static/js/net/event_stream.js";
import { randomNumbers } from "./helpers.js";

const bytesOf = (text) => new TextEncoder().encode(text);
const read = (...chunks) => {
  const stream = new EventStream();
  return chunks.flatMap((chunk) => stream.push(typeof chunk === "string" ? bytesOf(chunk) : chunk));
};

test("data of events, one after the other, whatever ends their lines", () => {
  for (const end of ["\n", "\r\n", "\r"]) {
    // What a lone CR ends is known when something follows it.
    assert.deepEqual(read(`data: one${end}${end}data:two${end}${end}`, ":"), ["one", "two"], JSON.stringify(end));
  }
});

test("an event without its empty line is not complete", () => {
  assert.deepEqual(read("data: one\n"), []);
  assert.deepEqual(read("data: one\n", "\n"), ["one"]);
});

test("one space belongs to the field, the others to the data; lines of one event stay lines", () => {
  assert.deepEqual(read("data:  two spaces \n\n"), [" two spaces "]);
  assert.deepEqual(read("data: a: b\ndata\ndata: c\n\n"), ["a: b\n\nc"]);
});

test("comments, other fields and a byte order mark are no data", () => {
  assert.deepEqual(read("\ufeff: still there\n\nevent: x\nid: 3\nretry: 5\ndata: one\n\n:\n\n\n\n"), ["one"]);
});

test("events have names; one without is a message", () => {
  const stream = new EventStream();
  assert.deepEqual(stream.events(bytesOf("event: progress\ndata: 1\n\ndata: 2\n\nevent: lost\n\n")), [
    { name: "progress", data: "1" },
    { name: "message", data: "2" },
  ]);
  assert.deepEqual(stream.events(bytesOf("data: 3\nevent: result\n\n")), [{ name: "result", data: "3" }]);
});

test("cut anywhere, within characters and line ends too, the events are the same", () => {
  const texts = ["größer", "日本語", "👩‍🔬 and 🧫", "", '{"a":"\\n"}', "[DONE]"];
  const random = randomNumbers(7);
  for (const end of ["\n", "\r\n"]) {
    const whole = bytesOf(texts.map((text) => `data: ${text}${end}${end}`).join(""));
    for (let size = 1; size < 9; size += 1) {
      const chunks = [];
      for (let at = 0; at < whole.length; at += size) chunks.push(whole.slice(at, at + size));
      assert.deepEqual(read(...chunks), texts, `chunks of ${size}`);
    }
    for (let round = 0; round < 50; round += 1) {
      const cut = Math.floor(random() * whole.length);
      assert.deepEqual(read(whole.slice(0, cut), whole.slice(cut)), texts, `cut at ${cut}`);
    }
  }
});
