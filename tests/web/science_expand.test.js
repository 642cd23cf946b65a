import assert from "node:assert/strict";
import test from "node:test";

import { setStackTaker } from "../../src/triton_sam/service/static/js/importers.js";
import { Expander } from "../../src/triton_sam/service/static/js/science/expand.js";
import { mayHaveMore } from "../../src/triton_sam/service/static/js/science/file_heads.js";
import { expanded } from "../../src/triton_sam/service/static/js/science/planes.js";
import { connection, fakeService, tiff, renderer } from "./science_helpers.js";

const expander = (service, more = {}) =>
  new Expander({ service, connection, limits: () => null, confirm: () => true, renderer, ...more });
/** @returns {Promise<object[]>} all items; they are made one by one */
async function itemsOf(expanding) {
  const items = [];
  for await (const item of await expanding) items.push(item);
  return items;
}
const ramp = (from, length) => Uint16Array.from({ length }, (_, index) => from + index);

test("files that may have more than a browser shows are known by their first bytes", () => {
  const head = (text) => Uint8Array.from(text, (character) => character.charCodeAt(0));
  for (const start of ["II*\0", "MM\0*", "II+\0", "MM\0+", "P5\n4 4\n65535\n", "\0\0\0\x0cjP  \r\n"]) {
    assert.equal(mayHaveMore(head(start)), true, start);
  }
  for (const start of ["", "\xff\xd8\xff\xe0", "GIF89a", "RIFF", "P", "{}"]) assert.equal(mayHaveMore(head(start)), false, start);
});

test("a file that the server need not be asked about, and one without a choice, stay as they are", async () => {
  const service = fakeService([new Uint8Array(12)], { width: 2, height: 2, channels: 3, channel_names: ["red", "green", "blue"] });
  const jpeg = new Blob([Uint8Array.of(0xff, 0xd8, 0xff)]);
  assert.deepEqual(await itemsOf(expander(service).expand(jpeg, "a.jpg")), [{ name: "a.jpg", file: jpeg, view: null }]);
  assert.equal(service.described, 0);
  const file = tiff();
  assert.deepEqual(await itemsOf(expander(service).expand(file, "a.tif")), [{ name: "a.tif", file, view: null }]);
  assert.equal(service.described, 1);
  assert.deepEqual(service.asked, [], "no pixels were asked for");
});

test("a stack becomes one item a page, in order, with the samples that the file has", async () => {
  const pages = [ramp(100, 6), ramp(2000, 6), ramp(40000, 6)];
  const told = [];
  const service = fakeService(pages, { width: 3, height: 2, channels: 1 });
  const items = await itemsOf(expander(service, { onPage: (...page) => told.push(page) }).expand(tiff(), "stack.tif"));
  assert.deepEqual(items.map(({ name }) => name), ["stack.tif#1", "stack.tif#2", "stack.tif#3"]);
  assert.deepEqual(items.map(({ view }) => [view.page, view.pages, view.origin]), [1, 2, 3].map((page) => [page, 3, "stack.tif"]));
  for (const [index, { view, file }] of items.entries()) {
    assert.deepEqual(new Uint16Array(await expanded(view.source)), pages[index]);
    assert.deepEqual(view.windows, [{ low: pages[index][0], high: pages[index][5] }], "stretched");
    assert.equal(file.type, "image/png");
  }
  assert.deepEqual(told, [[1, 3], [2, 3], [3, 3], [3, 3]]);
  assert.deepEqual(service.asked, [[0, 3]], "one request, because the pages are small");
});

test("large pages are asked for in parts, so that memory stays flat", async () => {
  // The description says that a page is large; what is sent is small, which is refused, but it was asked for rightly.
  const pages = Array.from({ length: 5 }, () => new Uint16Array(4));
  const service = fakeService(pages, { width: 5000, height: 5000, channels: 1 });
  await assert.rejects(itemsOf(expander(service).expand(tiff(), "big.tif")), { code: "unreachable" });
  assert.deepEqual(service.asked, [[0, 2]]);
});

test("fewer pages than were asked for are followed by the others", async () => {
  const pages = [ramp(1, 2), ramp(5, 2), ramp(9, 2)];
  const service = fakeService(pages, { width: 2, height: 1, channels: 1, most: 2 });
  assert.equal((await itemsOf(expander(service).expand(tiff(), "stack.tif"))).length, 3);
  assert.deepEqual(service.asked, [[0, 3], [2, 1]]);
});

test("8 bits are not stretched, and one page has the file's name", async () => {
  const service = fakeService([Uint8Array.of(5, 6, 7, 8, 100, 101, 102, 103)], { width: 2, height: 2, channels: 2 });
  const [{ name, view }] = await itemsOf(expander(service).expand(tiff(), "two.tif"));
  assert.equal(name, "two.tif");
  assert.deepEqual(view.windows, [{ low: 0, high: 255 }, { low: 0, high: 255 }]);
  assert.deepEqual(view.look, { colours: [0, 1, null] });
});

test("what the server refuses, and what is too large, is said before anything else is sent", async () => {
  const refusing = fakeService([new Uint16Array(4)], { width: 2, height: 2, channels: 1, problem: "this is a HEIC file" });
  await assert.rejects(expander(refusing).expand(tiff(), "a.tif"), { detail: "this is a HEIC file" });
  const service = fakeService([new Uint16Array(4)], { width: 2, height: 2, channels: 1 });
  const small = expander(service, { limits: () => ({ max_image_bytes: 50 }) });
  await assert.rejects(small.expand(tiff(), "a.tif"), ({ code, detail }) => code === "too_large" && /104 bytes and 50/.test(detail));
  assert.equal(service.described, 0);
});

test("very many pages are asked for first", async () => {
  const pages = Array.from({ length: 201 }, () => new Uint16Array(1));
  const service = fakeService(pages, { width: 1, height: 1, channels: 1 });
  const questions = [];
  const answer = (isWanted) => ({ confirm: (question) => (questions.push(question), isWanted) });
  assert.deepEqual(await itemsOf(expander(service, answer(false)).expand(tiff(), "long.tif")), []);
  assert.equal((await itemsOf(expander(service, answer(true)).expand(tiff(), "long.tif"))).length, 201);
  assert.match(questions[0], /long\.tif has 201 pages/);
  assert.equal(questions.length, 2);
});

test("a stack that is too large for images is offered as a video before it is refused", async () => {
  const service = fakeService([new Uint8Array(12)], { width: 2, height: 2, channels: 1, channel_names: null });
  const limits = () => ({ max_image_bytes: 4 });
  const asked = [];
  setStackTaker((_, name, pages) => asked.push([name, pages]) > 1);
  try {
    await assert.rejects(expander(service, { limits }).expand(tiff(), "a.tif"), /4 are allowed/);
    assert.deepEqual(await itemsOf(expander(service, { limits }).expand(tiff(), "a.tif")), []);
  } finally {
    setStackTaker(() => false);
  }
  assert.deepEqual(asked, [["a.tif", null], ["a.tif", null]]);
  assert.equal(service.described, 0, "nothing was sent");
});
