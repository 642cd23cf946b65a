/** Files to documents of the list, with a page that only remembers. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { classNamed, mergeClasses, newClasses } from "../../src/triton_sam/service/static/js/core/classes.js";
import * as documents from "../../src/triton_sam/service/static/js/core/document.js";
import { importJson, importLabels } from "../../src/triton_sam/service/static/js/import/importing.js";
import { labelImage } from "../../src/triton_sam/service/static/js/export/label_image.js";
import { drawing, maskOf } from "./helpers.js";

const SIZE = { width: 6, height: 4 };

/** @param {string[]} names of the images, the first is open */
function fakePage(...names) {
  const items = names.map((name, index) => ({ record: `r${index}`, name, ...SIZE }));
  let classes = newClasses();
  const page = {
    items,
    project: { list: { current: "r0" } },
    documents: new Map(items.map(({ record }) => [record, documents.newDocument()])),
    told: "",
    steps: 0,
    classes: {
      get list() {
        return classes.list;
      },
      merge(others) {
        classes = mergeClasses(classes, others).classes;
        return new Map(others.map(({ name }) => [name, classNamed(classes, name)]));
      },
    },
    async editDocument(record, change) {
      page.steps += 1;
      page.documents.set(record, change(page.documents.get(record)));
      return true;
    },
    notice: (kind, text) => (page.told = text),
    announce: () => {},
  };
  return page;
}

const json = (name, document) => new File([typeof document === "string" ? document : JSON.stringify(document)], name);
const things = (page, record) => page.documents.get(record).things;

test("COCO: boxes and masks come to their images in one step each, and what does not fit is named", async () => {
  const page = fakePage("a/one.png", "two.png", "three.png");
  const images = ["one.png", "x/two.png", "three.png", "four.png"].map((file_name, id) => ({ id, file_name, ...SIZE }));
  images[2].width = 7;
  const annotation = (image_id, fields) => ({ id: 1, image_id, category_id: 5, ...fields });
  const annotations = [
    annotation(0, { bbox: [1, 1, 2, 2] }),
    annotation(0, { segmentation: { size: [4, 6], counts: [0, 4, 20] } }),
    annotation(1, { bbox: [1, 1, 3, 2], segmentation: [] }),
    annotation(1, { bbox: [50, 50, 3, 2] }),
    annotation(1, { segmentation: { size: [4, 7], counts: [28] } }),
    annotation(2, { bbox: [1, 1, 3, 2] }),
    annotation(3, { bbox: [1, 1, 3, 2] }),
  ];
  await importJson(page, json("x.json", { images, annotations, categories: [{ id: 5, name: "cell" }, { id: 9, name: "unused" }] }));
  assert.equal(page.steps, 2);
  assert.deepEqual(things(page, "r0").map(({ box, base, classId }) => [box, base && [...base.runs], classId]), [
    [[1, 1, 3, 3], null, "class-5"],
    [null, [0, 4, 20], "class-5"],
  ]);
  assert.deepEqual(things(page, "r1").map(({ box }) => box), [[1, 1, 4, 3]]);
  assert.deepEqual(page.classes.list.map(({ id, name }) => [id, name]), [["class-5", "cell"], ["class-9", "unused"]]);
  assert.equal(things(page, "r0")[0].colour, page.classes.list[0].colour);
  assert.equal(page.told, "Imported 1 mask and 2 boxes on 2 images. Boxes become masks when their image is opened. "
    + "1 image is not in the list: four.png. 1 image has another size than the file says: three.png. "
    + "1 annotation has neither a mask nor a box in the image. 1 annotation was left out: the mask has 7 x 4 pixels and the image 6 x 4.");
});

test("a file whose images are not there, and files of other kinds, are refused with a sentence", async () => {
  const page = fakePage("one.png");
  const names = ["p", "q", "r", "s", "t", "u"];
  const images = names.map((name, id) => ({ id, file_name: `${name}.png`, ...SIZE }));
  const annotations = names.map((_, image_id) => ({ image_id, bbox: [0, 0, 2, 2] }));
  const refused = (document, pattern) => assert.rejects(importJson(page, json("x.json", document)), pattern);
  await refused({ images, annotations }, /None of its 6 images is in the list/);
  await refused({ images, annotations }, /p\.png, q\.png, r\.png, s\.png and 2 more/);
  await refused("{", /not valid JSON/);
  await refused({ version: 1 }, /neither COCO nor GeoJSON/);
  await refused([{ image_id: 1, bbox: [0, 0, 1, 1] }], /COCO results/);
  await refused({ images: [], annotations: [] }, /no annotations/);
  await refused({ type: "Polygon", coordinates: [[[90, 90], [95, 90], [95, 95]]] }, /no polygon within one\.png/);
  assert.equal(page.steps, 0);
  await importJson(page, json("classes.json", ["a", "b"]));
  assert.equal(page.told, "2 classes were added.");
});

test("GeoJSON and label images: by the name in the file, by the file's name, else onto the open image", async () => {
  const page = fakePage("open.png", "cells.tif", "named.png");
  const square = { type: "Polygon", coordinates: [[[1, 1], [3, 1], [3, 3], [1, 3], [1, 1]]] };
  await importJson(page, json("cells-polygons.geojson", square));
  await importJson(page, json("other.geojson", { type: "FeatureCollection", name: "named.png", features: [{ type: "Feature", geometry: square }] }));
  await importJson(page, json("other.geojson", square));
  const label = async (picture) => labelImage(picture, [{ mask: maskOf(drawing(...picture.rows)), name: "n", className: "k" }]);
  await importLabels(page, new File([await label({ ...SIZE, rows: ["#.....", "......", "......", ".....#"] })], "cells_labels.png"));
  assert.deepEqual(["r0", "r1", "r2"].map((record) => things(page, record).length), [1, 2, 1]);
  assert.deepEqual(things(page, "r1").map(({ name, classId }) => [name, classId]), [["Object 1", null], ["n", "class-1"]]);
  const small = new File([await label({ width: 2, height: 1, rows: ["#."] })], "cells_labels.png");
  await assert.rejects(importLabels(page, small), /cells_labels\.png has 2 x 1 pixels and cells\.tif 6 x 4/);
  await assert.rejects(importLabels(page, new File(["GIF89a"], "a.gif")), /neither a PNG nor a TIFF/);
});
