import assert from "node:assert/strict";
import test from "node:test";

import { polygonsOf } from "../../src/triton_sam/service/static/js/core/polygon.js";
import { bitmapOf, drawing, maskOf, randomBitmap, randomNumbers } from "./helpers.js";

function isInside(rings, x, y) {
  let inside = false;
  for (const ring of rings) {
    for (let index = 1; index < ring.length; index += 1) {
      const [[x0, y0], [x1, y1]] = [ring[index - 1], ring[index]];
      if (x0 === x1 && x0 > x && y0 > y !== y1 > y) inside = !inside;
    }
  }
  return inside;
}

function rasterised({ width, height }, rings) {
  return bitmapOf(width, height, (x, y) => isInside(rings, x + 0.5, y + 0.5)).data;
}

function signedArea(ring) {
  return ring.slice(1).reduce((sum, [x, y], index) => sum + (ring[index][0] * y - x * ring[index][1]) / 2, 0);
}

/** Each group of pixels connected by edges, as a bitmap, by flooding. */
function connectedGroups({ width, height, data }) {
  const rest = data.slice();
  const groups = [];
  for (let start = 0; start < rest.length; start += 1) {
    if (!rest[start]) continue;
    const group = new Uint8Array(rest.length);
    const open = [start];
    while (open.length) {
      const at = open.pop();
      if (!rest[at]) continue;
      rest[at] = 0;
      group[at] = 1;
      const [x, y] = [at % width, Math.floor(at / width)];
      if (x > 0) open.push(at - 1);
      if (x + 1 < width) open.push(at + 1);
      if (y > 0) open.push(at - width);
      if (y + 1 < height) open.push(at + width);
    }
    groups.push(group);
  }
  return groups;
}

function assertRing(ring) {
  assert.ok(ring.length >= 5);
  assert.deepEqual(ring[0], ring.at(-1));
  const corners = ring.slice(1);
  assert.equal(new Set(corners.map(String)).size, corners.length, `a corner twice: ${JSON.stringify(ring)}`);
  corners.forEach(([x, y], index) => {
    const [x0, y0] = ring[index];
    const [x1, y1] = corners[(index + 1) % corners.length];
    assert.ok((x0 === x) !== (y0 === y), "an edge is horizontal or vertical");
    assert.ok((x0 === x) !== (x === x1), "a corner is no point on a line");
  });
}

function assertPolygons(bitmap) {
  const polygons = polygonsOf(maskOf(bitmap));
  polygons.flat().forEach(assertRing);
  for (const [outer, ...holes] of polygons) {
    assert.ok(signedArea(outer) > 0);
    for (const hole of holes) {
      assert.ok(signedArea(hole) < 0);
      const [within, around] = [rasterised(bitmap, [hole]), rasterised(bitmap, [outer])];
      assert.ok(within.every((value, index) => value <= around[index]), "a hole leaves its ring");
    }
  }
  const texts = (bitmaps) => bitmaps.map((data) => data.join("")).sort();
  const drawn = polygons.map((rings) => rasterised(bitmap, rings));
  assert.deepEqual(texts(drawn), texts(connectedGroups(bitmap)));
  assert.deepEqual(rasterised(bitmap, polygons.flat()), bitmap.data);
  return polygons;
}

test("random masks come back from their polygons, one for each group of pixels, with its own holes", () => {
  const random = randomNumbers(9);
  for (let round = 0; round < 800; round += 1) assertPolygons(randomBitmap(random, round % 4 ? 9 : 30));
});

test("every mask of 4 x 3 pixels comes back", () => {
  for (let bits = 0; bits < 2 ** 12; bits += 1) {
    assertPolygons(bitmapOf(4, 3, (x, y) => ((bits >> (4 * y + x)) & 1) === 1));
  }
});

test("every pattern around pinched corners within a frame comes back", () => {
  for (let bits = 0; bits < 2 ** 9; bits += 1) {
    const isFrame = (x, y) => x === 0 || y === 0 || x === 4 || y === 4;
    assertPolygons(bitmapOf(5, 5, (x, y) => isFrame(x, y) || ((bits >> (3 * (y - 1) + x - 1)) & 1) === 1));
  }
});

test("a single pixel is a square, with the sign of its area positive", () => {
  const [[ring]] = assertPolygons(drawing("...", "..#"));
  assert.deepEqual(ring.map(String).sort(), ["2,1", "2,2", "3,1", "3,2", String(ring[0])].sort());
  assert.equal(signedArea(ring), 1);
});

test("an empty mask has no polygon and a full one four corners", () => {
  assert.deepEqual(assertPolygons(drawing("..", "..")), []);
  const [[ring], ...others] = assertPolygons(drawing("###", "###"));
  assert.equal(ring.length, 5);
  assert.equal(others.length, 0);
});

test("pixels that touch at a corner are two polygons", () => {
  assert.equal(assertPolygons(drawing("#.", ".#")).length, 2);
  assert.equal(assertPolygons(drawing(".#", "#.")).length, 2);
});

test("holes that touch at a corner, or their outer ring at one, are rings of their own", () => {
  const [twoHoles] = assertPolygons(drawing("####", "#.##", "##.#", "####"));
  assert.equal(twoHoles.length, 3);
  const [atTheBorder] = assertPolygons(drawing("###", "#.#", "##."));
  assert.equal(atTheBorder.length, 2);
});

test("an island in a hole is a polygon of its own, also where it touches the hole's corner", () => {
  assert.deepEqual(
    assertPolygons(drawing("#####", "#...#", "#.#.#", "#...#", "#####")).map((rings) => rings.length),
    [2, 1],
  );
  assert.equal(assertPolygons(drawing("####", "##.#", "#.##", "####")).length, 1);
  assert.equal(assertPolygons(drawing("#####", "#.#.#", "##.##", "#.#.#", "#####")).length, 1);
});
