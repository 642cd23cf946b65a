import assert from "node:assert/strict";
import { test } from "node:test";

import { newClasses, mergeClasses } from "../../src/triton_sam/service/static/js/core/classes.js";
import { equal, toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { NameMatcher, isNamedAsLabels } from "../../src/triton_sam/service/static/js/core/name_matching.js";
import { polygonMask } from "../../src/triton_sam/service/static/js/core/polygon_fill.js";
import { cocoDocument } from "../../src/triton_sam/service/static/js/export/coco.js";
import { geoJson } from "../../src/triton_sam/service/static/js/export/geojson.js";
import { classImage, labelImage } from "../../src/triton_sam/service/static/js/export/label_image.js";
import { greyPng } from "../../src/triton_sam/service/static/js/export/png.js";
import { maskOfSegmentation, objectOf, readCoco } from "../../src/triton_sam/service/static/js/import/coco.js";
import { objectOfFeature, readGeoJson, isGeoJson } from "../../src/triton_sam/service/static/js/import/geojson.js";
import { masksOfLabels, meaningOf, objectOfLabel } from "../../src/triton_sam/service/static/js/import/label_image.js";
import { pngTexts, readGreyPng } from "../../src/triton_sam/service/static/js/import/png_reader.js";
import { bitmapOf, drawing, maskOf, randomBitmap, randomBitmapOf, randomNumbers } from "./helpers.js";

const ROUNDS = 150;
const { list: CLASSES } = mergeClasses(newClasses(), [{ name: "cell" }, { name: "Zellkern ä", number: 300 }]).classes;
const bytesOf = async (blob) => new Uint8Array(await blob.arrayBuffer());

/** Objects of one random image; about half of them with a class. */
function randomObjects(random) {
  const first = randomBitmap(random, 24);
  const masks = [first, ...Array.from({ length: 4 }, () => randomBitmapOf(random, first.width, first.height))].map(maskOf);
  const objects = masks.map((mask, index) => {
    const className = [null, "cell", "Zellkern ä"][Math.floor(random() * 3)];
    return { name: `Object ${index + 1}`, className, category: className ?? "object", colour: "#1e90ff", mask, score: null };
  });
  return { picture: { name: "Bild ä.png", width: first.width, height: first.height }, objects };
}

const filled = (objects) => objects.filter(({ mask }) => mask.runs.length > 1);

test("masks come back from our COCO document exactly, with their classes", () => {
  const random = randomNumbers(1);
  for (let round = 0; round < ROUNDS; round += 1) {
    const { picture, objects } = randomObjects(random);
    const { images, classNames } = readCoco(JSON.parse(JSON.stringify(cocoDocument(picture, objects, CLASSES))));
    const back = images[0].annotations.map((one) => objectOf(one, classNames, picture)).filter(Boolean);
    assert.equal(images[0].fileName, picture.name);
    assert.deepEqual(back.map(({ className }) => className), filled(objects).map(({ category }) => category));
    back.forEach(({ mask }, index) => assert.ok(equal(mask, filled(objects)[index].mask)));
  }
});

test("masks come back from our GeoJSON exactly, with names and classes", () => {
  const random = randomNumbers(2);
  for (let round = 0; round < ROUNDS; round += 1) {
    const { picture, objects } = randomObjects(random);
    const { features, imageName } = readGeoJson(JSON.parse(JSON.stringify(geoJson(picture, objects))));
    const back = features.map((feature) => objectOfFeature(feature, picture));
    assert.equal(imageName, picture.name);
    assert.deepEqual(back.map(({ name, className }) => [name, className]), filled(objects).map(({ name, className }) => [name, className]));
    back.forEach(({ mask }, index) => assert.ok(equal(mask, filled(objects)[index].mask)));
  }
});

test("labels come back from our PNGs exactly, 8 and 16 bit, with names and classes", async () => {
  const random = randomNumbers(3);
  for (let round = 0; round < ROUNDS / 3; round += 1) {
    const { picture, objects } = randomObjects(random);
    const more = random() < 0.5 ? 0 : 1000;
    const labelled = objects.map((object, index) => ({ ...object, label: more + index + 1 }));
    const image = await readGreyPng(await bytesOf(await labelImage(picture, labelled)));
    const found = await masksOfLabels(image.values, image.width, image.height);
    assert.equal(image.bitDepth, more ? 16 : 8);
    const again = found.map((one) => ({ ...objectOfLabel(one, meaningOf(image.texts)), label: one.value }));
    const shown = labelled.filter(({ label }) => found.some(({ value }) => value === label));
    assert.deepEqual(again.map(({ name, className }) => [name, className]), shown.map(({ name, className }) => [name, className]));
    const repeated = await readGreyPng(await bytesOf(await labelImage(picture, again)));
    assert.deepEqual(repeated.values, image.values);
  }
});

test("a label image of classes has the classes' numbers, and says what they are", async () => {
  const picture = { name: "a.png", width: 3, height: 1 };
  const objects = [
    { name: "one", category: "Zellkern ä", mask: maskOf(drawing("##.")) },
    { name: "two", category: "object", mask: maskOf(drawing(".#.")) },
  ];
  const image = await readGreyPng(await bytesOf(await classImage(picture, objects, CLASSES)));
  assert.deepEqual([...image.values], [300, 301, 0]);
  assert.deepEqual(meaningOf(image.texts), { 1: { class: "cell" }, 300: { class: "Zellkern ä" }, 301: { class: "object" } });
  const [first] = await masksOfLabels(image.values, 3, 1);
  assert.equal(objectOfLabel(first, meaningOf(image.texts)).className, "Zellkern ä");
});

test("COCO: boxes alone are prompts within the image, run lengths of another size are refused", () => {
  const size = { width: 10, height: 8 };
  const names = new Map([[1, "cell"]]);
  const of = (annotation) => objectOf({ category_id: 1, ...annotation }, names, size);
  assert.deepEqual(of({ bbox: [-2, 1, 5.5, 3] }), { className: "cell", box: [0, 1, 3.5, 4] });
  assert.deepEqual(of({ bbox: [1, 1, 2, 2], segmentation: [] }).box, [1, 1, 3, 3]);
  assert.equal(of({ bbox: [20, 1, 5, 3] }), null);
  assert.equal(of({}), null);
  assert.equal(of({ category_id: 9, bbox: [0, 0, 2, 2] }).className, null);
  assert.throws(() => of({ segmentation: { size: [8, 11], counts: [88] } }), /11 x 8.*10 x 8/);
  assert.throws(() => of({ segmentation: { size: [8, 10], counts: [70] } }), /do not fill/);
  assert.deepEqual([...of({ segmentation: { size: [8, 10], counts: [0, 3, 0, 2, 75] } }).mask.runs], [0, 5, 75]);
  const flat = maskOfSegmentation([0, 0, 4, 0, 4, 4, 0, 4], size);
  assert.deepEqual(toCocoRle(flat), toCocoRle(maskOfSegmentation([[0, 0, 4, 0, 4, 4, 0, 4]], size)));
});

test("GeoJSON: QuPath's forms", () => {
  const square = { type: "Polygon", coordinates: [[[1, 1], [3, 1], [3, 3], [1, 3], [1, 1]]] };
  const feature = (properties) => ({ type: "Feature", id: "x", geometry: square, properties });
  const list = [
    feature({ objectType: "detection", classification: { name: "Tumor", colorRGB: -3670016 } }),
    feature({ objectType: "detection", classification: { names: ["Tumor", "Positive"], color: [1, 2, 3] } }),
    feature({ label: "debris" }),
    feature(null),
  ];
  const { classes, features } = readGeoJson(list);
  assert.deepEqual(classes.map(({ name, colour }) => [name, colour]), [["Tumor", "#c80000"], ["Tumor: Positive", "#010203"], ["debris", undefined]]);
  assert.deepEqual([...objectOfFeature(features[3], { width: 4, height: 4 }).mask.runs], [5, 2, 2, 2, 5]);
  assert.equal(objectOfFeature({ geometry: { type: "Point", coordinates: [1, 1] } }, { width: 4, height: 4 }), null);
  assert.throws(() => objectOfFeature({ geometry: { type: "Polygon", coordinates: [[["a", 1]]] } }, { width: 4, height: 4 }), /not numbers/);
  assert.ok(isGeoJson(square) && isGeoJson({ type: "FeatureCollection", features: [] }) && !isGeoJson({ images: [] }) && !isGeoJson([]));
});

test("a polygon has the pixels whose centres are inside, and neighbours share none", () => {
  const random = randomNumbers(4);
  for (let round = 0; round < ROUNDS; round += 1) {
    const [width, height] = [1 + Math.floor(random() * 20), 1 + Math.floor(random() * 20)];
    const coordinate = (length) => (random() < 0.3 ? Math.floor(random() * length) + 0.5 : random() * (length + 8) - 4);
    const rings = Array.from({ length: 1 + Math.floor(random() * 2) }, () =>
      Array.from({ length: 3 + Math.floor(random() * 5) }, () => [coordinate(width), coordinate(height)]));
    const isInside = (x, y) => rings.flatMap((ring) => ring.map((to, at) => [ring.at(at - 1), to]))
      .filter(([[x0, y0], [x1, y1]]) => x0 > x !== x1 > x && y0 + ((x - x0) / (x1 - x0)) * (y1 - y0) <= y).length % 2 === 1;
    const expected = maskOf(bitmapOf(width, height, (x, y) => isInside(x + 0.5, y + 0.5)));
    assert.deepEqual(polygonMask(rings, width, height), expected);
  }
});

test("PNGs that are no label images are refused by name", async () => {
  const bytes = await bytesOf(await greyPng(5, 4, 8, () => {}, { Comment: "hä" }));
  assert.deepEqual(pngTexts(bytes), { Comment: "hä" });
  assert.deepEqual(pngTexts(bytes.subarray(0, 60)), { Comment: "hä" });
  const changed = (at, value) => Uint8Array.from(bytes, (byte, index) => (index === at ? value : byte));
  await assert.rejects(readGreyPng(changed(25, 2)), /has colours/);
  await assert.rejects(readGreyPng(changed(28, 1)), /interlaced/);
  await assert.rejects(readGreyPng(changed(20 + 3, 9)), /cut off/); // one row more than there is
  await assert.rejects(readGreyPng(new Uint8Array(30)), /not a PNG/);
});

test("names of files find their images, with and without folders", () => {
  const items = ["a/one.png", "b/one.png", "b/two.tif", "Drei Ä.jpg"].map((name) => ({ name }));
  const matcher = new NameMatcher(items);
  const nameOf = (item) => item?.name ?? null;
  assert.equal(nameOf(matcher.image("b\\one.png")), "b/one.png");
  assert.equal(nameOf(matcher.image("data/b/one.png")), "b/one.png");
  assert.equal(nameOf(matcher.image("one.png")), null, "it could be both");
  assert.equal(nameOf(matcher.image("train/two.TIF")), "b/two.tif");
  assert.equal(nameOf(matcher.image("DREI a\u0308.jpg")), "Drei Ä.jpg");
  assert.equal(nameOf(matcher.image("two.png")), null);
  assert.equal(nameOf(matcher.companion("two_labels.png")), "b/two.tif");
  assert.equal(nameOf(matcher.companion("two.png")), "b/two.tif");
  assert.equal(nameOf(matcher.companion("drei ä_cp_masks.png")), "Drei Ä.jpg");
  assert.equal(nameOf(matcher.companion("four_labels.png")), null);
  assert.ok(isNamedAsLabels("x/two_masks.tif") && isNamedAsLabels("a-labels.png") && !isNamedAsLabels("labels.png"));
});
