/** Words, lanes, colours, kinds of files and models, lines of a stream, pictures within their room, and playing. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { colourOf, hexOf } from "../../src/triton_sam/service/static/js/video/colours.js";
import { FrameCache } from "../../src/triton_sam/service/static/js/video/frames.js";
import { isAnimatedWebp, isVideo } from "../../src/triton_sam/service/static/js/video/kinds.js";
import { laneMarks, laneParts, laneText } from "../../src/triton_sam/service/static/js/video/lanes.js";
import { Lines, documentsOf } from "../../src/triton_sam/service/static/js/video/lines.js";
import { EMBEDDED, videoModels } from "../../src/triton_sam/service/static/js/video/models.js";
import { placeLabel, placesIn, placesText } from "../../src/triton_sam/service/static/js/video/places.js";
import { videoSentence } from "../../src/triton_sam/service/static/js/video/sentences.js";
import { counted, rangesText, timeOf } from "../../src/triton_sam/service/static/js/video/words.js";
import { turns } from "./video_helpers.js";

test("words", () => {
  assert.deepEqual([counted(1, "slice"), counted(1280, "frame")], ["1 slice", "1,280 frames"]);
  assert.deepEqual([timeOf(0, 25), timeOf(31, 25), timeOf(25 * 61, 25), timeOf(3, null)], ["0:00.0", "0:01.2", "1:01.0", ""]);
  assert.equal(rangesText([[0, 35], [41, 41]]), "0–35, 41");
  assert.equal(rangesText(Array.from({ length: 9 }, (_, at) => [3 * at, 3 * at]), 2), "0, 3, …");
});

const span = (first, last, state, isStale = false) => ({ first, last, state, isStale });

test("a lane is drawn to scale, and stays short with thousands of changes", () => {
  const spans = [span(0, 1, "present"), span(2, 2, "absent"), span(3, 5, "unknown"), span(6, 9, "present", true)];
  assert.deepEqual(laneParts(spans, 10, 100), [
    { from: 0, to: 20, kind: "present" },
    { from: 20, to: 30, kind: "absent" },
    { from: 60, to: 100, kind: "stale" },
  ]);
  const many = Array.from({ length: 20_000 }, (_, at) => span(at, at, at % 2 ? "present" : "absent"));
  const parts = laneParts(many, 20_000, 1000);
  assert.ok(parts.length <= 1001, `${parts.length} parts`);
  assert.equal(parts.at(-1).to, 1000);
  assert.ok(laneMarks(Array.from({ length: 5000 }, (_, at) => at), 5000).length <= 401);
});

test("a lane in words", () => {
  const spans = [span(0, 1, "present"), span(2, 2, "absent"), span(3, 5, "present", true), span(6, 9, "unknown")];
  assert.equal(
    laneText(3, spans, [0], "frame"),
    "Object 3: present in frames 0–1, 3–5, lost in frames 2, not tracked in frames 6–9, older than a correction in frames 3–5, prompts in frames 0",
  );
});

test("colours are those of exported videos", () => {
  assert.deepEqual([1, 2, 3].map(colourOf), [[255, 64, 64], [64, 120, 255], [175, 255, 64]]);
  assert.equal(hexOf(2), "#4078ff");
});

test("which files are videos", () => {
  const file = (name, type = "") => ({ name, type });
  assert.ok([file("a.MP4"), file("clip", "video/webm"), file("b.mkv")].every(isVideo));
  assert.ok(![file("a.png", "image/png"), file("mp4.txt"), file("stack.tif")].some(isVideo));
  const webp = (flags) => Uint8Array.from([..."RIFF0000WEBPVP8X0000"].map((letter) => letter.charCodeAt(0)).concat(flags));
  assert.deepEqual([webp(2), webp(0x12), webp(0x10), new Uint8Array(3)].map(isAnimatedWebp), [true, true, false, false]);
});

test("Meta's models come before the embedded one, and the served default first", () => {
  const model = (id, video, isDefault = false) => ({ id, video, default: isDefault });
  const chosen = videoModels([model(EMBEDDED, true, true), model("sam2:tiny", false), model("sam2.1:small", true), model("old")]);
  assert.deepEqual(chosen.map(({ id }) => id), ["sam2.1:small", EMBEDDED]);
  assert.deepEqual(videoModels([model("sam2:tiny", false)]), []);
  assert.equal(videoModels([model("a", true), model("b", true, true)])[0].id, "b");
});

test("what the server says of a video is shown as it is", () => {
  assert.equal(videoSentence(new Problem("too_large", "the video has 9 frames: send a shorter one")), "The video has 9 frames: send a shorter one.");
  assert.match(videoSentence(new Problem("too_large")), /proxy/);
  assert.match(videoSentence(new Problem("unreachable")), /does not respond/);
});

test("the dimensions of a stack that have to be chosen are those that the service names", () => {
  const message = "cells.tif has c from 0 to 1 and t from 0 to 1200, and one of them is tracked: give at=c=0 at=t=0, with the number that you want";
  const places = placesIn(message);
  assert.deepEqual(places, [{ name: "c", most: 1 }, { name: "t", most: 1200 }]);
  assert.deepEqual(places.map(placeLabel), ["Channel, 0 to 1", "Time, 0 to 1,200"]);
  assert.equal(placesText(places, [5, NaN]), "c=1,t=0");
  assert.deepEqual(placesIn("the video has frames from 0 to 12 only"), []);
});

test("lines of a stream, however they are cut", () => {
  const text = '{"frame_index":1,"name":"ä"}\n\n{"done":true}\n';
  const bytes = new TextEncoder().encode(text);
  for (let size = 1; size <= bytes.length; size += 1) {
    const lines = new Lines();
    const found = [];
    for (let at = 0; at < bytes.length; at += size) found.push(...lines.push(bytes.subarray(at, at + size)));
    assert.deepEqual(found, ['{"frame_index":1,"name":"ä"}', '{"done":true}']);
  }
});

const streamOf = (...texts) =>
  new ReadableStream({
    start(controller) {
      for (const text of texts) controller.enqueue(new TextEncoder().encode(text));
      controller.close();
    },
  });

async function all(stream, signal = new AbortController().signal) {
  const found = [];
  for await (const document of documentsOf(stream, signal)) found.push(document);
  return found;
}

test("a stream ends with what says so; anything else is an error", async () => {
  assert.deepEqual(await all(streamOf('{"frame_index":0}\n{"cancelled":true,"frames":1}\n{"frame_index":1}\n')), [
    { frame_index: 0 },
    { cancelled: true, frames: 1 },
  ]);
  await assert.rejects(all(streamOf('{"frame_index":0}\n')), { code: "cut_off" });
  await assert.rejects(all(streamOf('{"error":{"code":"unavailable","message":"gone"}}\n')), { code: "unavailable", detail: "gone" });
  await assert.rejects(all(streamOf("<html>\n")), { code: "unreadable" });
});

/** Loads pictures when it is told to. */
function loader() {
  const waiting = new Map();
  const closed = [];
  const load = (frame, signal) =>
    new Promise((resolve, reject) => {
      waiting.set(frame, { resolve: () => resolve({ frame, close: () => closed.push(frame) }), reject });
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  const finish = async (frame) => {
    waiting.get(frame).resolve();
    waiting.delete(frame);
    await turns();
  };
  return { load, finish, waiting, closed };
}

test("pictures are loaded in the order in which they are wanted, three at a time, and kept within their room", async () => {
  const { load, finish, waiting, closed } = loader();
  const cache = new FrameCache(load, 100, 800);
  const told = [];
  cache.addEventListener("frame", ({ detail }) => told.push(detail));
  cache.want([5, 6, 7, 8]);
  assert.deepEqual([...waiting.keys()], [5, 6, 7]);
  await finish(5);
  assert.deepEqual([...waiting.keys()], [6, 7, 8]);
  for (const frame of [6, 7, 8]) await finish(frame);
  for (let first = 9; first < 30; first += 3) {
    cache.want([first, first + 1, first + 2]);
    for (const frame of [first, first + 1, first + 2]) await finish(frame);
    assert.ok(cache.size <= 8);
  }
  assert.equal(cache.get(5), null);
  assert.equal(cache.get(29).frame, 29);
  assert.ok(closed.includes(5) && !closed.includes(29));
  assert.equal(told.length, 25);
  cache.close();
  assert.equal(closed.length, 25);
});

test("what is wanted no more is given up, and what fails is told and not tried for ever", async () => {
  const { load, finish, waiting } = loader();
  const cache = new FrameCache(load, 1, 10);
  const failed = [];
  cache.addEventListener("failed", ({ detail }) => failed.push(detail.frame));
  cache.want([1, 2, 3]);
  cache.want([9]);
  await turns();
  assert.ok(waiting.has(9));
  cache.want([1]);
  await turns();
  waiting.get(1).reject(new Error("no"));
  await turns();
  assert.deepEqual(failed, [1]);
  cache.want([9]);
  await turns();
  await finish(9);
  assert.equal(cache.get(9).frame, 9);
});
