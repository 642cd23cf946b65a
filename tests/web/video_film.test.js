/** What is known about a video: tracks, corrections and what brings them up to date, prompts, masks within their room. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { equal, fromCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { MaskStore, hasPixels } from "../../src/triton_sam/service/static/js/video/masks.js";
import { passes, startOf } from "../../src/triton_sam/service/static/js/video/plan.js";
import { NO_PROMPT, Prompts, bodyOf, withBox, withPoint, withoutPoint } from "../../src/triton_sam/service/static/js/video/prompts.js";
import { Tracks, lengthOf, rangesOf } from "../../src/triton_sam/service/static/js/video/tracks.js";
import { randomBitmap, randomNumbers, maskOf } from "./helpers.js";
import { toCocoRle, area } from "../../src/triton_sam/service/static/js/core/mask.js";
import { answer, film, point, rle } from "./video_helpers.js";

const ask = (one, object, frame) => {
  one.setPrompt(object, frame, withPoint(one.prompts.get(object, frame), point()));
  one.corrected(object, answer(frame, Object.fromEntries(one.objects.map(({ id }) => [id, 5]))));
};

function track(one, direction, start, pixels = () => 5) {
  const { frames } = one.info;
  const up = Array.from({ length: frames - start }, (_, index) => start + index);
  const down = Array.from({ length: start + 1 }, (_, index) => start - index);
  const order = { forward: up, backward: down, both: [...up, ...down.slice(1)] }[direction];
  one.setTracking({ direction, start, done: 0, of: order.length, frame: start });
  for (const frame of order) one.tracked(answer(frame, Object.fromEntries(one.objects.map(({ id }) => [id, pixels(id, frame)]))));
  one.setTracking(null);
}

const states = (one, object) =>
  Array.from({ length: one.info.frames }, (_, frame) => {
    const span = one.tracks.spans(object).find(({ first, last }) => first <= frame && frame <= last);
    return { unknown: ".", present: "#", absent: "o" }[span.state] + (span.isStale ? "!" : "");
  }).join("");

test("an object's lane: there, lost, not tracked yet", () => {
  const one = film(8);
  ask(one, 1, 2);
  assert.equal(states(one, 1), "..#.....");
  track(one, "forward", 2, (_, frame) => (frame > 3 && frame < 6 ? 0 : 5));
  assert.equal(states(one, 1), "..##oo##");
  const lost = rangesOf(one.tracks.spans(1), ({ state }) => state === "absent");
  assert.deepEqual([lost, lengthOf(lost)], [[[4, 5]], 2]);
  assert.equal(one.tracks.stateAt(1, 4), "absent");
  assert.equal(one.tracks.stateAt(9, 4), "unknown");
});

test("a correction makes what was tracked from there older, of its object only, until it is tracked again", () => {
  const one = film(8);
  ask(one, 1, 0);
  ask(one, 2, 0);
  track(one, "forward", 0);
  assert.equal(one.remedy, null);
  ask(one, 1, 3);
  assert.equal(states(one, 1), "####" + "#!".repeat(4));
  assert.equal(states(one, 2), "########");
  assert.deepEqual(one.remedy, { start: 3, direction: "forward" });
  ask(one, 1, 6);
  assert.deepEqual(one.remedy, { start: 3, direction: "forward" });
  assert.equal(one.tracks.stateAt(1, 6), "present");
  track(one, "forward", 3);
  assert.equal(states(one, 1), "########");
  assert.equal(one.remedy, null);
});

test("what was tracked backward is older than a correction after it", () => {
  const one = film(6);
  ask(one, 1, 3);
  track(one, "backward", 3);
  ask(one, 1, 1);
  assert.equal(states(one, 1), "#!###..");
  assert.deepEqual(one.remedy, { start: 1, direction: "backward" });
  track(one, "both", 3);
  assert.equal(one.remedy, null);
  ask(one, 1, 2);
  assert.equal(states(one, 1), "#!####!#!", "a prompt counts for all that comes after it");
  assert.deepEqual(one.remedy, { start: 2, direction: "both" });
  track(one, "both", 2);
  assert.equal(one.remedy, null);
});

test("a cancelled propagation leaves the rest older, and prompted frames keep their own masks", () => {
  const one = film(6);
  ask(one, 1, 0);
  ask(one, 1, 4);
  track(one, "forward", 0);
  ask(one, 1, 1);
  assert.equal(states(one, 1), "###!#!##!", "frame 4 has a prompt");
  one.setTracking({ direction: "forward", start: 1, done: 0, of: 5, frame: 1 });
  for (const frame of [1, 2, 3]) one.tracked(answer(frame, { 1: 5 }));
  one.setTracking(null);
  assert.deepEqual(one.remedy, { start: 1, direction: "forward" });
});

test("a removed object takes its prompts, masks and what was older with it; numbers are used once", () => {
  const one = film(5);
  ask(one, 1, 0);
  one.selectNew();
  assert.equal(one.selected, 2);
  ask(one, 2, 0);
  track(one, "forward", 0);
  ask(one, 2, 2);
  one.remove(2);
  assert.equal(one.remedy, null);
  assert.deepEqual([...one.masks.get(3).keys()], [1]);
  assert.deepEqual(one.prompts.frames, [0]);
  assert.equal(one.selected, 1);
  one.selectNew();
  assert.equal(one.selected, 3);
  one.tracked(answer(3, { 1: 5, 2: 5 }));
  assert.deepEqual([...one.masks.get(3).keys()], [1], "a late answer brings it not back");
});

test("an answer that names one object leaves the masks of the others", () => {
  const one = film(5);
  ask(one, 1, 0);
  one.setPrompt(2, 0, withPoint(NO_PROMPT, point()));
  one.corrected(2, answer(0, { 2: 7 }));
  assert.deepEqual([...one.masks.get(0).keys()].sort(), [1, 2]);
  one.setPrompt(2, 0, NO_PROMPT);
  one.corrected(2, answer(0, {}));
  assert.deepEqual([...one.masks.get(0).keys()], [1]);
  assert.equal(one.tracks.stateAt(2, 0), "unknown");
});

test("a film is found again after a reload", () => {
  const one = film(6);
  const prompts = [{ frame_index: 2, points: [[4, 3]], labels: [0], box: null, mask: false }];
  one.restore({ objects: [{ object_id: 4, prompts }], tracked: [[0, 4]], presence: { 4: [[1, 2], [4, 4]] } });
  assert.equal(states(one, 4), "o##o#.");
  assert.deepEqual(one.prompts.get(4, 2), { points: [{ x: 4, y: 3, label: 0 }], box: null, isMask: false });
  assert.equal(one.selected, 4);
  ask(one, 4, 2);
  assert.equal(states(one, 4), "o!#!#o!#!.", "both sides of the prompt depend on it");
});

test("tracking begins at the outermost prompt, or at a correction if all before it was tracked", () => {
  const one = film(10);
  assert.equal(startOf(one, "forward", 0), null);
  ask(one, 1, 2);
  ask(one, 1, 6);
  assert.equal(startOf(one, "forward", 6), 2, "nothing between the two was tracked");
  assert.equal(startOf(one, "backward", 0), 6);
  track(one, "forward", 2);
  assert.equal(startOf(one, "forward", 6), 6);
  assert.equal(startOf(one, "forward", 5), 2, "there is no prompt");
  assert.deepEqual(["forward", "backward", "both"].map((way) => passes(way, 2, 10)), [8, 3, 10]);
});

test("prompts as the API takes them; a new box replaces the points", () => {
  const prompt = withPoint(withPoint(NO_PROMPT, point(1, 2, 1)), point(3, 4, 0));
  assert.deepEqual(bodyOf(2, 7, prompt), { frame_index: 7, object_id: 2, clear_old_points: true, points: [[1, 2], [3, 4]], labels: [1, 0] });
  assert.deepEqual(bodyOf(2, 7, withBox(prompt, [1, 2, 3, 4])), { frame_index: 7, object_id: 2, clear_old_points: true, box: [1, 2, 3, 4] });
  const prompts = new Prompts();
  prompts.set(2, 7, prompt);
  prompts.set(2, 3, withoutPoint(prompt, 0));
  assert.deepEqual([prompts.framesOf(2), prompts.frames, prompts.all.length], [[3, 7], [3, 7], 2]);
  prompts.set(2, 7, NO_PROMPT);
  prompts.set(2, 3, withoutPoint(withoutPoint(prompt, 0), 0));
  assert.deepEqual(prompts.frames, []);
});

test("masks are kept as they came, within their room, the ones used last", () => {
  const { length } = rle().counts;
  const store = new MaskStore(3 * (length + 400));
  for (let frame = 0; frame < 3; frame += 1) store.put(frame, answer(frame, { 1: frame + 1 }).results);
  assert.ok(equal(store.get(0).get(1), fromCocoRle(rle(1))));
  assert.equal(store.get(0), store.get(0), "decoded once");
  store.put(3, answer(3, { 1: 4 }).results);
  assert.equal(store.get(1), null, "the one that was not looked at longest");
  assert.deepEqual([0, 2, 3].map((frame) => area(store.get(frame).get(1))), [1, 3, 4]);
  store.put(0, answer(0, { 1: 9 }).results);
  assert.equal(area(store.get(0).get(1)), 9);
  for (let frame = 0; frame < 500; frame += 1) store.put(frame, answer(frame, { 1: 5 }).results);
  assert.ok(store.frames <= 3);
});

test("whether a mask has pixels is told without decoding it", () => {
  const random = randomNumbers(5);
  for (let round = 0; round < 200; round += 1) {
    const text = toCocoRle(maskOf(randomBitmap(random)));
    assert.equal(hasPixels(text), area(fromCocoRle(text)) > 0);
  }
});

test("the spans of random tracks put together again are the tracks", () => {
  const random = randomNumbers(6);
  for (let round = 0; round < 50; round += 1) {
    const frames = 1 + Math.floor(random() * 30);
    const tracks = new Tracks(frames);
    const written = Array.from({ length: frames }, () => ["unknown", "present", "absent"][Math.floor(random() * 3)]);
    written.forEach((state, frame) => state !== "unknown" && tracks.set(1, frame, state === "present"));
    const spans = tracks.spans(1);
    assert.deepEqual(spans.flatMap(({ first, last, state }) => Array.from({ length: last - first + 1 }, () => state)), written);
    assert.equal(spans.some((span, index) => index && span.state === spans[index - 1].state), false);
  }
});
