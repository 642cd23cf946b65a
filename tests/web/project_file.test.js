/** What is written to a project file comes back; and what other programs make of the ZIP. */
import assert from "node:assert/strict";
import test from "node:test";
import { deflateRawSync } from "node:zlib";

import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import { cocoDocument, cocoOfImages } from "../../src/triton_sam/service/static/js/export/coco.js";
import { mergedCoco } from "../../src/triton_sam/service/static/js/export/coco_merging.js";
import { unzip } from "../../src/triton_sam/service/static/js/export/unzip.js";
import { zip } from "../../src/triton_sam/service/static/js/export/zip.js";
import * as format from "../../src/triton_sam/service/static/js/project/file_format.js";
import { drawing, maskOf } from "./helpers.js";

const mask = maskOf(drawing("##.", ".##"));
const other = maskOf(drawing("...", "##."));

/** An object of every kind: clicked with an answer, painted on, and one whose answer is still to come. */
function worked() {
  let document = documents.addPoint(documents.newDocument(), { x: 1, y: 0, label: 1 });
  document = documents.answering(documents.promptKey(document.things[0]), [{ mask, score: 0.9 }, { mask: other, score: 0.2 }])(document);
  document = documents.paint(document, other, true);
  document = documents.activate(document, null);
  document = documents.addBox(document, [0, 0, 2, 2], "cup");
  return { ...document, things: document.things.map((thing, index) => (index ? thing : { ...thing, classId: "class-3" })) };
}

test("a document comes back from JSON as it was", () => {
  const document = worked();
  const text = JSON.stringify(format.projectJson({ classes: { list: [] } }, [{ name: "a.png", document: format.storedDocument(document) }]));
  const { settings, images } = format.readProjectJson(text);
  assert.deepEqual(settings, { classes: { list: [] } });
  const back = format.documentFrom(images[0].document);
  assert.deepEqual(back, document);
  assert.deepEqual(documents.maskOf(back.things[0]), documents.maskOf(document.things[0]));
});

test("what is not a project file of this version is refused with a sentence", () => {
  const refusal = (text) => {
    try {
      format.readProjectJson(text);
    } catch (error) {
      return error.detail;
    }
    return null;
  };
  assert.match(refusal("{"), /damaged/);
  assert.match(refusal('{"images": []}'), /not a project file/);
  assert.match(refusal(JSON.stringify({ ...format.projectJson({}, []), version: 99 })), /newer version/);
  assert.match(refusal(JSON.stringify({ ...format.projectJson({}, []), images: 3 })), /damaged/);
  assert.equal(refusal(JSON.stringify(format.projectJson({}, []))), null);
});

test("classes get the numbers that they have here", () => {
  const [first, second] = format.withClassIds(worked(), new Map([["class-3", "class-1"]])).things;
  assert.equal(first.classId, "class-1");
  assert.equal(second.classId ?? null, null);
  assert.equal(format.withClassIds(worked(), new Map()).things[0].classId, "class-3");
});

test("the blobs of a view travel as files, and nothing else of it changes", () => {
  const view = { source: new Blob(["samples"], { type: "x/y" }), page: 2, channels: [{ low: 1, high: 9 }], none: null };
  const kept = [];
  const stored = format.withoutBlobs(view, (blob) => `sources/${kept.push(blob)}`);
  assert.deepEqual(JSON.parse(JSON.stringify(stored)).source, { file: "sources/1", type: "x/y" });
  assert.deepEqual(format.withBlobs(stored, () => kept[0]), view);
  assert.equal(format.withoutBlobs(null, () => ""), null);
});

test("a ZIP of this page is read again, and so is a compressed one", async () => {
  const blob = await zip([{ name: "a/ä.txt", blob: new Blob(["first"]) }, { name: "b", blob: new Blob([]) }]);
  const entries = await unzip(blob);
  assert.deepEqual([...entries.keys()], ["a/ä.txt", "b"]);
  assert.equal(await (await entries.get("a/ä.txt")()).text(), "first");
  assert.equal((await entries.get("b")()).size, 0);
  const packed = await unzip(deflated("notes", "again and again and again"));
  assert.equal(await (await packed.get("notes")()).text(), "again and again and again");
});

test("a damaged ZIP is refused", async () => {
  const blob = await zip([{ name: "a", blob: new Blob(["first"]) }]);
  await assert.rejects(unzip(blob.slice(0, 30)), /damaged/);
  await assert.rejects(unzip(blob.slice(10)), /damaged/);
  await assert.rejects(unzip(new Blob([])), /damaged/);
});

test("COCO of images one by one is COCO of all of them", () => {
  const classes = [{ id: "class-4", name: "cup", colour: "#112233" }, { id: "class-2", name: "spoon", colour: "#332211" }];
  const object = (name, category) => ({ name, category, mask, score: 0.5 });
  const images = [
    { picture: { name: "a.png", width: 3, height: 2 }, objects: [object("x", "table"), object("y", "cup")] },
    { picture: { name: "b.png", width: 3, height: 2 }, objects: [] },
    { picture: { name: "c.png", width: 3, height: 2 }, objects: [object("z", "chair"), object("w", "table"), object("v", "spoon")] },
  ];
  for (const known of [classes, []]) {
    const parts = images.map(({ picture, objects }) => cocoDocument(picture, objects, known));
    assert.deepEqual(mergedCoco(parts), cocoOfImages(images, known));
  }
});

/** A ZIP with one compressed entry, as other programs write it. */
function deflated(name, text) {
  const body = deflateRawSync(Buffer.from(text));
  const shared = Buffer.alloc(26);
  shared.writeUInt16LE(20, 0);
  shared.writeUInt16LE(8, 4);
  shared.writeUInt32LE(body.length, 14);
  shared.writeUInt32LE(text.length, 18);
  shared.writeUInt16LE(name.length, 22);
  const local = Buffer.concat([Buffer.from("PK\x03\x04"), shared, Buffer.from(name), body]);
  const central = Buffer.concat([Buffer.from("PK\x01\x02\x14\x00", "latin1"), shared, Buffer.alloc(14), Buffer.from(name)]);
  const end = Buffer.alloc(22);
  end.write("PK\x05\x06", "latin1");
  end.writeUInt16LE(1, 8);
  end.writeUInt16LE(1, 10);
  end.writeUInt32LE(central.length, 12);
  end.writeUInt32LE(local.length, 16);
  return new Blob([local, central, end]);
}
