import assert from "node:assert/strict";
import test from "node:test";

import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { Contrast } from "../../src/triton_sam/service/static/js/science/contrast.js";
import { Pages, asIn } from "../../src/triton_sam/service/static/js/science/pages.js";
import { develop } from "../../src/triton_sam/service/static/js/science/rendering.js";
import { withWindow } from "../../src/triton_sam/service/static/js/science/view.js";
import { RenderWorker } from "../../src/triton_sam/service/static/js/science/render_worker.js";
import { deferred, settled } from "./helpers.js";

const view = (page = 1, more = {}) => ({
  width: 2, height: 1, channels: 1, dtype: "uint16", range: { low: 0, high: 65535 }, notFinite: 0, names: null, origin: "a.tif",
  stack: "s", page, pages: 3, look: { grey: 0 }, windows: [{ low: 100, high: 900 }], isLinked: false, ...more,
});
const bitmap = () => ({ close() {} });

/** An app with one open image; `shown` has what it was told to show otherwise, `said` its notices. */
class FakeApp extends EventTarget {
  constructor(picture) {
    super();
    Object.assign(this, { picture, bitmap: null, shown: [], said: [], items: [], opened: [], pictures: {} });
    this.project = {
      list: { current: "one" },
      store: { readPicture: async (record) => this.pictures[record] ?? null },
      changePicture: (record, rendering) => this.shown.push([record, rendering]),
    };
  }

  notice(kind, text) {
    this.said.push(text);
  }

  openRecord(record) {
    this.opened.push(record);
  }

  open(picture, record) {
    this.picture = picture;
    this.project.list.current = record;
    this.dispatchEvent(new Event("picture"));
  }
}

/** A renderer whose quick looks a test answers. */
function fakeRenderWorker() {
  const looks = [];
  return {
    looks,
    load: async () => [new Uint32Array(65536)],
    quick: (wanted) => {
      const look = deferred();
      looks.push({ wanted, ...look });
      return look.promise;
    },
    finish: async (wanted) => ({ bitmap: bitmap(), file: new Blob([`png ${wanted.windows[0].low}`]) }),
    render: async (wanted) => new Blob([`page ${wanted.page} ${wanted.windows[0].low}`]),
    split: async () => ({ samples: new Blob([Uint8Array.of(3, 7)]), width: 2, height: 1, channels: 1 }),
    develop,
  };
}

function open(context, picture) {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const app = new FakeApp(picture);
  const renderer = fakeRenderWorker();
  const replaced = [];
  const contrast = new Contrast(app, { replace: (shown) => replaced.push(shown) }, renderer);
  return { app, renderer, contrast, replaced };
}

const moved = (contrast, low) => withWindow(contrast.view, 0, { low, high: 900 });

test("while a handle moves, one look at a time is drawn, and the newest wins", async (context) => {
  const { contrast, renderer, replaced, app } = open(context, { view: view() });
  await contrast.load();
  for (const low of [1, 2, 3, 4]) contrast.preview(moved(contrast, low));
  assert.deepEqual(renderer.looks.map(({ wanted }) => wanted.windows[0].low), [1]);
  renderer.looks[0].resolve(bitmap());
  await settled();
  assert.deepEqual(renderer.looks.map(({ wanted }) => wanted.windows[0].low), [1, 4]);
  renderer.looks[1].resolve(bitmap());
  await settled();
  assert.equal(replaced.length, 2);
  assert.equal(renderer.looks.length, 2);
  assert.deepEqual(app.shown, [], "the model is not asked while a handle moves");
});

test("the model is given what is shown once the user has rested", async (context) => {
  const { contrast, app } = open(context, { view: view() });
  await contrast.load();
  for (const low of [5, 6]) {
    contrast.preview(moved(contrast, low));
    contrast.settle();
  }
  context.mock.timers.tick(1000);
  await settled();
  assert.equal(app.shown.length, 1);
  const [record, rendering] = app.shown[0];
  assert.deepEqual([record, await rendering.file.text(), rendering.view.windows[0].low], ["one", "png 6", 6]);
});

test("a change is kept if another image is opened at once, and is not drawn over it", async (context) => {
  const { contrast, app, renderer, replaced } = open(context, { view: view() });
  await contrast.load();
  contrast.preview(moved(contrast, 7));
  contrast.settle();
  app.open({ view: view(2) }, "two");
  renderer.looks[0].resolve(bitmap());
  await settled();
  assert.deepEqual(app.shown.map(([record, { view: stored }]) => [record, stored.windows[0].low]), [["one", 7]]);
  assert.deepEqual(replaced, []);
  assert.equal(contrast.view.page, 2);
  assert.equal(contrast.histograms, null);
});

test("an ordinary picture has samples when they are asked for, and a view when it was changed", async (context) => {
  const { contrast, app } = open(context, { name: "a.png", file: new Blob(["png"]), view: null });
  assert.equal(contrast.isScientific, false);
  assert.equal(contrast.view, null);
  await contrast.load();
  assert.deepEqual(contrast.view.windows, [{ low: 0, high: 255 }]);
  contrast.preview(withWindow(contrast.view, 0, { low: 3, high: 7 }));
  contrast.settle();
  context.mock.timers.tick(1000);
  await settled();
  assert.ok(app.shown[0][1].view.source instanceof Blob, "its samples are stored with it");
});

test("samples that cannot be read are said in a sentence", async (context) => {
  const { contrast, app, renderer } = open(context, { view: view() });
  renderer.load = () => Promise.reject(new Problem("refused", "this image needs more memory"));
  await contrast.load();
  assert.deepEqual(app.said, ["This image needs more memory."]);
  assert.equal(contrast.histograms, null);
});

test("all pages get the window of one, in the file's values, and the open page is left alone", async () => {
  const app = new FakeApp({ view: view(2) });
  app.items = [1, 2, 3].map((page) => ({ record: `r${page}`, stack: "s", page }));
  app.items.push({ record: "other", stack: "t", page: 1 }, { record: "plain" });
  app.pictures = { r1: { view: view(1) }, r3: { view: view(3) } };
  const pages = new Pages(app, fakeRenderWorker(), async () => "decoded");
  assert.deepEqual(pages.state, { page: 2, count: 3 });
  const texts = [];
  pages.addEventListener("pages", () => texts.push(pages.working));
  await pages.useForAll(view(2, { windows: [{ low: 250, high: 700 }] }));
  assert.deepEqual(app.shown.map(([record]) => record), ["r1", "r3"]);
  assert.deepEqual(await Promise.all(app.shown.map(([, { file }]) => file.text())), ["page 1 250", "page 3 250"]);
  assert.deepEqual(texts, ["Page 1 of 2", "Page 2 of 2", ""]);
  app.project.list.current = "r3"; // opened while the pages are being drawn
  app.shown = [];
  await pages.useForAll(view(2));
  assert.deepEqual(app.shown.map(([record, { bitmap: drawn }]) => [record, drawn]), [["r1", null], ["r3", "decoded"]]);
  pages.open(3);
  assert.deepEqual(app.opened, ["r3"]);
});

test("a window of floats is the same values in pages whose samples mean others", () => {
  const from = view(1, { range: { low: 0, high: 2 }, windows: [{ low: 0, high: 32768 }] });
  const to = asIn(view(2, { range: { low: 0, high: 4 } }), from);
  assert.deepEqual(to.windows, [{ low: 0, high: 16384 }]);
  assert.equal(to.page, 2);
});

test("a worker that fails is an error for who waits, and the next task has a new one", async () => {
  const made = [];
  const renderer = new RenderWorker(() => (made.push({ postMessage() {} }), made.at(-1)));
  const waiting = [renderer.load(view()), renderer.quick(view())];
  made[0].onerror();
  for (const one of waiting) await assert.rejects(one, /more memory/);
  const next = renderer.quick(view());
  assert.equal(made.length, 2);
  made[1].onmessage({ data: { id: 3, result: "bitmap" } });
  assert.equal(await next, "bitmap");
});
