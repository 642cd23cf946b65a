/** What the comparison with Python's readers (tests/unit/test_web_modules.py) does not reach. */

import assert from "node:assert/strict";
import test from "node:test";
import { inflateSync } from "node:zlib";

import { cocoDocument } from "../../src/triton_sam/service/static/js/export/coco.js";
import { crc32 } from "../../src/triton_sam/service/static/js/export/crc.js";
import { geoJson } from "../../src/triton_sam/service/static/js/export/geojson.js";
import { labelImage } from "../../src/triton_sam/service/static/js/export/label_image.js";
import { greyPng } from "../../src/triton_sam/service/static/js/export/png.js";
import { zip } from "../../src/triton_sam/service/static/js/export/zip.js";
import { drawing, maskOf } from "./helpers.js";

const picture = { name: "cells.tif", width: 2, height: 2 };
const filled = maskOf(drawing("##", ".#"));
const empty = maskOf(drawing("..", ".."));

/** The chunks' bodies by type, of which there may be many. */
async function chunksOf(blob) {
  const bytes = Buffer.from(await blob.arrayBuffer());
  const chunks = [];
  for (let at = 8; at < bytes.length; at += 12 + bytes.readUInt32BE(at)) {
    const end = at + 8 + bytes.readUInt32BE(at);
    assert.equal(bytes.readUInt32BE(end), crc32(bytes.subarray(at + 4, end)));
    chunks.push([bytes.toString("latin1", at + 4, at + 8), bytes.subarray(at + 8, end)]);
  }
  return chunks;
}

test("the checksum is CRC-32, in one piece or in two", () => {
  const bytes = new TextEncoder().encode("123456789");
  assert.equal(crc32(bytes), 0xcbf43926);
  assert.equal(crc32(bytes.subarray(4), crc32(bytes.subarray(0, 4))), 0xcbf43926);
  assert.equal(crc32(new Uint8Array(0)), 0);
});

test("a PNG of many blocks has each row once, in order, as the difference to the row above", async () => {
  const [width, height] = [1000, 700];
  const value = (x, y) => (x * 7 + y * 300) & 0xffff;
  const rows = [];
  const blob = await greyPng(width, height, 16, (y, row) => {
    assert.ok(row instanceof Uint16Array);
    assert.ok(row.every((pixel) => pixel === 0));
    rows.push(y);
    for (let x = 0; x < width; x += 1) row[x] = value(x, y);
  });
  assert.equal(blob.type, "image/png");
  assert.deepEqual(rows, Array.from({ length: height }, (_, y) => y));
  const chunks = await chunksOf(blob);
  assert.deepEqual([...chunks[0][1]], [0, 0, 3, 232, 0, 0, 2, 188, 16, 0, 0, 0, 0]);
  assert.equal(chunks.at(-1)[0], "IEND");
  const raw = inflateSync(Buffer.concat(chunks.filter(([type]) => type === "IDAT").map(([, body]) => body)));
  const above = new Uint8Array(2 * width);
  for (let y = 0; y < height; y += 1) {
    const line = raw.subarray(y * (2 * width + 1), (y + 1) * (2 * width + 1));
    assert.equal(line[0], 2);
    for (let index = 0; index < above.length; index += 1) above[index] += line[index + 1];
    assert.equal((above[2 * (y % width)] << 8) | above[2 * (y % width) + 1], value(y % width, y));
  }
});

test("a row that cannot be filled is the caller's error", async () => {
  const fail = () => {
    throw new Error("no such row");
  };
  await assert.rejects(greyPng(3, 3, 8, fail), /no such row/);
});

test("a PNG without pixels or with odd bits is refused", async () => {
  await assert.rejects(greyPng(0, 3, 8, () => {}), /0 x 3/);
  await assert.rejects(greyPng(3, 3, 4, () => {}), /8 or 16 bits/);
});

test("a label image needs masks of its size, and no more objects than it has labels", async () => {
  await assert.rejects(labelImage({ ...picture, width: 3 }, [{ mask: filled }]), /3 x 2/);
  await assert.rejects(labelImage(picture, new Array(65536).fill({ mask: filled })), /65535/);
});

test("a ZIP file holds 65535 files at most", async () => {
  await assert.rejects(zip(new Array(65536).fill({ name: "a", blob: new Blob([]) })), /65535/);
});

test("a COCO document has a category a name and a score where there is one", () => {
  const objects = [
    { name: "cell", mask: filled, score: 0 },
    { name: "débris", mask: empty, score: null },
    { name: "cell", mask: filled },
  ];
  const document = cocoDocument(picture, objects);
  assert.deepEqual(
    document.annotations.map(({ id, category_id: category, score }) => [id, category, score]),
    [[1, 1, 0], [2, 2, undefined], [3, 1, undefined]],
  );
  assert.deepEqual(document.categories.map(({ id, name }) => [id, name]), [[1, "cell"], [2, "débris"]]);
  assert.deepEqual(document.annotations[1].bbox, [0, 0, 0, 0]);
  assert.ok(document.annotations.every(({ iscrowd }) => iscrowd === 0));
});

test("GeoJSON has QuPath's properties and leaves empty objects out", () => {
  const objects = [
    { name: "cell", colour: "#1e90FF", mask: filled, score: 0.5 },
    { name: "nothing", colour: "#000000", mask: empty, score: 0.5 },
    { name: "pair", colour: "#ffffff", mask: maskOf(drawing("#.", ".#")) },
  ];
  const { type, features } = geoJson(picture, objects);
  assert.equal(type, "FeatureCollection");
  assert.deepEqual(features.map(({ geometry }) => geometry.type), ["Polygon", "MultiPolygon"]);
  assert.deepEqual(features[0].properties, {
    name: "cell",
    class: null,
    score: 0.5,
    objectType: "annotation",
    classification: { name: "cell", color: [30, 144, 255] },
  });
  assert.ok(!("score" in features[1].properties));
  assert.throws(() => geoJson(picture, [{ name: "cell", colour: "red", mask: filled }]), /#rrggbb/);
});
