/** Prompts on their way to the server, propagations, and which frame is looked at. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Editing } from "../../src/triton_sam/service/static/js/video/editing.js";
import { Tracker } from "../../src/triton_sam/service/static/js/video/tracking.js";
import { Viewing } from "../../src/triton_sam/service/static/js/video/viewing.js";
import { answer, film, info, point, turns } from "./video_helpers.js";

/** A server that answers when it is told to. */
class Server {
  constructor() {
    this.asked = [];
    this.removed = [];
    this._waiting = [];
  }

  prompt = (id, body) => this._ask(body);

  clearPrompts = (id, object, frame) => this._ask({ cleared: [object, frame], object_id: object, frame_index: frame });

  removeObject = async (id, object) => void this.removed.push(object);

  _ask(body) {
    this.asked.push(body);
    return new Promise((resolve, reject) => this._waiting.push({ body, resolve, reject }));
  }

  async answer() {
    const { body, resolve } = this._waiting.shift();
    resolve(answer(body.frame_index, body.cleared ? {} : { [body.object_id]: body.points?.length ?? 9 }));
    await turns();
  }

  async refuse() {
    this._waiting.shift().reject(new Error("no"));
    await turns();
  }
}

function desk(frames = 10) {
  const [server, one, problems] = [new Server(), film(frames), []];
  let busy = 0;
  const editing = new Editing(one, server, (error) => problems.push(error), () => (busy += 1));
  return { server, film: one, editing, problems, busy: () => busy };
}

test("clicks are shown at once and sent one after the other, those that came meanwhile together", async () => {
  const { server, film: one, editing } = desk();
  editing.addPoint(0, point(1, 1));
  await turns();
  editing.addPoint(0, point(2, 2));
  editing.addPoint(0, point(3, 3, 0));
  assert.equal(one.prompts.get(1, 0).points.length, 3);
  assert.deepEqual(one.objects.map(({ id }) => id), [1]);
  await turns();
  assert.equal(server.asked.length, 1);
  await server.answer();
  await server.answer();
  await editing.settled;
  assert.deepEqual(server.asked.map(({ points }) => points.length), [1, 3]);
  assert.deepEqual(server.asked[1].labels, [1, 1, 0]);
});

test("what the server refuses is taken back, and a new object with it", async () => {
  const { server, film: one, editing, problems } = desk();
  editing.addPoint(2, point());
  await turns();
  await server.refuse();
  assert.equal(problems.length, 1);
  assert.deepEqual([one.objects, one.prompts.frames], [[], []]);
  editing.addPoint(2, point());
  await turns();
  await server.answer();
  editing.addPoint(2, point(5, 3));
  await turns();
  await server.refuse();
  assert.deepEqual([one.objects.length, one.prompts.get(1, 2).points], [1, [point()]]);
});

test("prompts are cleared, also the last one, and only what is there", async () => {
  const { server, film: one, editing } = desk();
  editing.clear(1, 0);
  await turns();
  assert.equal(server.asked.length, 0);
  editing.setBox(0, [0, 0, 4, 3]);
  await turns();
  await server.answer();
  editing.clear(1, 0);
  await turns();
  await server.answer();
  assert.deepEqual(server.asked.at(-1).cleared, [1, 0]);
  assert.equal(one.tracks.stateAt(1, 0), "unknown");
  editing.removeObject(1);
  await editing.settled;
  assert.deepEqual(server.removed, [1], "the server has the object still");
});

test("a removed object comes back with its prompts; one that was never sent is not removed there", async () => {
  const { server, film: one, editing } = desk();
  editing.addPoint(0, point());
  await turns();
  await server.answer();
  editing.addPoint(4, point(2, 2));
  await turns();
  await server.answer();
  const restore = editing.removeObject(1);
  await editing.settled;
  assert.deepEqual([one.objects, server.removed], [[], [1]]);
  restore();
  await turns();
  await server.answer();
  await server.answer();
  assert.deepEqual([one.prompts.framesOf(1), one.selected, server.asked.length], [[0, 4], 1, 4]);
  one.selectNew();
  one.setPrompt(2, 0, { points: [point()], box: null, isMask: false });
  editing.removeObject(2);
  await editing.settled;
  assert.deepEqual(server.removed, [1]);
});

test("nothing is changed while objects are tracked", async () => {
  const { server, film: one, editing, busy } = desk();
  one.setTracking({ direction: "forward", start: 0, done: 0, of: 10, frame: 0 });
  editing.addPoint(0, point());
  assert.equal(editing.removeObject(1), null);
  await turns();
  assert.deepEqual([server.asked, busy(), one.objects], [[], 2, []]);
});

/** @param {(signal: AbortSignal) => AsyncGenerator<object>} messages */
const trackerOf = (one, messages, problems = []) =>
  new Tracker(one, { propagate: (id, body, signal) => messages(body, signal), cancel: async () => {} }, (error) => problems.push(error));

test("a propagation fills the lanes and ends as the server says", async () => {
  const one = film(4);
  one.setPrompt(1, 0, { points: [point()], box: null, isMask: false });
  const asked = [];
  const messages = async function* (body) {
    asked.push(body);
    for (let frame = body.start_frame_index; frame < 4; frame += 1) yield answer(frame, { 1: frame === 2 ? 0 : 3 });
    yield { done: true, frames: 4 };
  };
  const seen = [];
  one.addEventListener("tracking", () => seen.push(one.tracking?.of ?? null));
  assert.equal(await trackerOf(one, messages).track("forward", 0), "done");
  assert.deepEqual(asked, [{ start_frame_index: 0, direction: "forward" }]);
  assert.deepEqual(seen, [4, null]);
  assert.deepEqual(one.tracks.spans(1).map(({ state }) => state), ["present", "absent", "present"]);
});

test("without prompts nothing is tracked, and an error is told once", async () => {
  const one = film(4);
  const problems = [];
  const broken = async function* () {
    yield answer(0, { 1: 3 });
    throw new Error("gone");
  };
  const tracker = trackerOf(one, broken, problems);
  assert.equal(await tracker.track("forward", 0), null);
  one.setPrompt(1, 0, { points: [point()], box: null, isMask: false });
  assert.equal(await tracker.track("forward", 0), "failed");
  assert.deepEqual([problems.length, one.tracking, one.tracks.stateAt(1, 0)], [1, null, "present"]);
});

test("cancelled, or left: what was tracked stays", async () => {
  const one = film(4);
  one.setPrompt(1, 0, { points: [point()], box: null, isMask: false });
  let left;
  const endless = async function* (body, signal) {
    yield answer(0, { 1: 3 });
    await new Promise((resolve, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  };
  const problems = [];
  const tracker = trackerOf(one, endless, problems);
  const end = tracker.track("forward", 0);
  await turns();
  assert.equal(await tracker.track("forward", 0), null, "one at a time");
  tracker.stop();
  left = await end;
  assert.deepEqual([left, problems, one.tracks.stateAt(1, 0)], ["cancelled", [], "present"]);
});

/** All pictures are there but those that are said. */
class Pictures extends EventTarget {
  constructor(missing = []) {
    super();
    this.missing = new Set(missing);
    this.wanted = [];
  }

  get = (frame) => (this.missing.has(frame) ? null : { frame });

  want = (frames) => (this.wanted = frames);

  arrive(frame) {
    this.missing.delete(frame);
    this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
  }
}

test("a frame is shown when its picture is there; the newest wish counts", () => {
  const pictures = new Pictures([5, 7]);
  const viewing = new Viewing(info(10), pictures);
  viewing.go(2);
  assert.equal(viewing.shown, 2);
  viewing.go(5);
  assert.deepEqual([viewing.frame, viewing.shown], [5, 2]);
  viewing.go(7);
  pictures.arrive(5);
  assert.equal(viewing.shown, 2, "nobody waits for it any more");
  pictures.arrive(7);
  assert.equal(viewing.shown, 7);
  assert.deepEqual(pictures.wanted.slice(0, 3), [7, 8, 9]);
  viewing.step(-Infinity);
  assert.deepEqual([viewing.frame, pictures.wanted[0]], [0, 0]);
  viewing.step(400);
  assert.equal(viewing.frame, 9);
  assert.ok(pictures.wanted.every((frame) => frame >= 0 && frame < 10));
});

test("playing shows every frame at its rate, waits for pictures, and ends at the end", () => {
  const ticks = [];
  globalThis.requestAnimationFrame = (tick) => ticks.push(tick);
  const pictures = new Pictures([3]);
  const viewing = new Viewing(info(6, { fps: 10 }), pictures);
  const shown = [];
  viewing.addEventListener("shown", () => shown.push(viewing.shown));
  viewing.go(0);
  viewing.play();
  let now = performance.now();
  const run = (milliseconds) => {
    for (const until = now + milliseconds; now < until; now += 16) ticks.splice(0).forEach((tick) => tick(now));
  };
  run(1000);
  assert.deepEqual(shown, [0, 1, 2]);
  pictures.arrive(3);
  run(1000);
  assert.deepEqual([shown, viewing.isPlaying], [[0, 1, 2, 3, 4, 5], false]);
  viewing.play();
  run(150);
  assert.deepEqual([viewing.isPlaying, shown.slice(6, 7)], [true, [0]], "from the start again");
  viewing.pause();
  delete globalThis.requestAnimationFrame;
});
