import assert from "node:assert/strict";
import test from "node:test";

import * as views from "../../src/triton_sam/service/static/js/core/view.js";
import { oneOf, randomNumbers } from "./helpers.js";

const LEAST_LEFT = 48;
const LARGEST_SCALE = 40;

const whole = (random, low, high) => low + Math.floor(random() * (high - low));
const sizeOf = (random, low, high) => ({ width: whole(random, low, high), height: whole(random, low, high) });

/** A view as a person gets to it: fitted, then zoomed and moved a few times. */
function randomView(random, image, canvas) {
  let view = views.fitted(image, canvas);
  for (let turn = whole(random, 0, 6); turn > 0; turn -= 1) {
    const [x, y] = [random() * canvas.width, random() * canvas.height];
    if (random() < 0.6) view = views.zoomed(view, Math.exp(random() * 4 - 1.5), x, y, image, canvas);
    else view = views.moved(view, (random() - 0.5) * 900, (random() - 0.5) * 900, image, canvas);
  }
  return view;
}

function* randomViews(seed, rounds) {
  const random = randomNumbers(seed);
  for (let round = 0; round < rounds; round += 1) {
    const image = oneOf(random, [sizeOf(random, 60, 400), sizeOf(random, 500, 7000), sizeOf(random, 1, 60)]);
    const canvas = sizeOf(random, 150, 2600);
    yield { random, image, canvas, view: randomView(random, image, canvas) };
  }
}

function assertNear(actual, expected, tolerance, message) {
  for (const axis of ["x", "y"]) {
    const apart = Math.abs(actual[axis] - expected[axis]);
    assert.ok(apart <= tolerance, `${message}: ${axis} is ${actual[axis]}, not ${expected[axis]}`);
  }
}

test("a fitted image is seen whole, in the middle, with a margin, and not above 4x", () => {
  const random = randomNumbers(31);
  for (let round = 0; round < 500; round += 1) {
    const [image, canvas] = [sizeOf(random, 1, 7000), sizeOf(random, 150, 2600)];
    const view = views.fitted(image, canvas);
    assert.ok(view.scale > 0 && view.scale <= 4);
    const room = [
      [view.x, canvas.width - view.x - image.width * view.scale],
      [view.y, canvas.height - view.y - image.height * view.scale],
    ];
    for (const [before, after] of room) {
      assert.ok(before >= 0 && after >= 0, JSON.stringify({ image, canvas, view }));
      assert.ok(Math.abs(before - after) <= 1e-6, "it is in the middle");
    }
    const isTight = room.some((sides, axis) => sides[0] + sides[1] <= 0.041 * [canvas.width, canvas.height][axis]);
    assert.ok(view.scale === 4 || isTight, "it is as large as it can be");
  }
});

test("for drawing, offsets are the nearest whole ones: at 1:1 a pixel of the image is a pixel of the screen", () => {
  let crooked = 0;
  for (const { view } of randomViews(32, 500)) {
    const before = { ...view };
    const drawn = views.aligned(view);
    assert.deepEqual(view, before, "the exact one stays");
    assert.equal(drawn.scale, view.scale);
    assert.ok(Number.isInteger(drawn.x) && Number.isInteger(drawn.y));
    assertNear(drawn, view, 0.5, "nearest");
    assert.deepEqual(views.aligned(drawn), drawn);
    if (!Number.isInteger(view.x)) crooked += 1;
  }
  assert.ok(crooked > 250, `only ${crooked} examples had something to round`);
  const view = views.centred({ width: 3, height: 4 }, { width: 100, height: 101 }, 1);
  assert.deepEqual(view, { scale: 1, x: 48.5, y: 48.5 }, "exactly in the middle");
  assert.deepEqual(views.aligned(view), { scale: 1, x: 49, y: 49 });
});

test("from the screen to the image and back is where one came from, and the other way round", () => {
  for (const { random, view, image, canvas } of randomViews(33, 500)) {
    const screen = { x: random() * canvas.width, y: random() * canvas.height };
    const onImage = views.toImage(view, screen.x, screen.y);
    assertNear(views.toScreen(view, onImage.x, onImage.y), screen, 1e-6, "screen");
    const place = { x: random() * image.width, y: random() * image.height };
    const onScreen = views.toScreen(view, place.x, place.y);
    assertNear(views.toImage(view, onScreen.x, onScreen.y), place, 1e-6, "image");
  }
});

test("zooming keeps the image's point under the mouse, and drawn it is within one device pixel", () => {
  let held = 0;
  for (const { random, view, image, canvas } of randomViews(34, 3000)) {
    const mouse = { x: random() * canvas.width, y: random() * canvas.height };
    const place = views.toImage(view, mouse.x, mouse.y);
    const next = views.zoomed(view, Math.exp(random() * 4 - 2), mouse.x, mouse.y, image, canvas);
    const free = { x: mouse.x - place.x * next.scale, y: mouse.y - place.y * next.scale };
    const isFree = (offset, length, room) => offset <= room - LEAST_LEFT && offset + length >= LEAST_LEFT;
    // Where the image would leave the canvas it is held back, and then the point cannot stay.
    if (!isFree(free.x, image.width * next.scale, canvas.width)) continue;
    if (!isFree(free.y, image.height * next.scale, canvas.height)) continue;
    held += 1;
    const example = JSON.stringify({ view, next, image, canvas });
    assertNear(views.toScreen(next, place.x, place.y), mouse, 1e-6, example);
    assertNear(views.toScreen(views.aligned(next), place.x, place.y), mouse, 0.5 + 1e-6, example);
  }
  assert.ok(held > 1500, `only ${held} examples were free to zoom`);
});

test("many small zooms, as of a pinch, keep the point there too", () => {
  const [image, canvas] = [{ width: 6000, height: 4000 }, { width: 1600, height: 900 }];
  const mouse = { x: 700.25, y: 410.75 };
  let view = views.fitted(image, canvas);
  const place = views.toImage(view, mouse.x, mouse.y);
  for (let turn = 0; turn < 200; turn += 1) view = views.zoomed(view, 1.01, mouse.x, mouse.y, image, canvas);
  assertNear(views.toScreen(view, place.x, place.y), mouse, 1e-6, "after 200 zooms");
});

test("however it is zoomed and moved, the scale stays in its limits and 48 pixels of the image stay in sight", () => {
  for (const { view, image, canvas } of randomViews(35, 3000)) {
    const least = Math.min(views.fitted(image, canvas).scale, 1) / 2;
    assert.ok(view.scale >= least && view.scale <= LARGEST_SCALE);
    for (const [offset, length, room] of [
      [view.x, image.width * view.scale, canvas.width],
      [view.y, image.height * view.scale, canvas.height],
    ]) {
      const seen = Math.min(room, offset + length) - Math.max(0, offset);
      assert.ok(seen >= Math.min(LEAST_LEFT, length) - 1e-6, JSON.stringify({ view, image, canvas }));
    }
  }
});

test("100 % is exactly 1, whatever the scale before", () => {
  for (const { view, image, canvas } of randomViews(36, 500)) {
    assert.equal(views.zoomed(view, 1 / view.scale, canvas.width / 2, canvas.height / 2, image, canvas).scale, 1);
  }
});

test("moving by device pixels moves by them, while there is room", () => {
  const [image, canvas] = [{ width: 1000, height: 1000 }, { width: 800, height: 800 }];
  const view = views.centred(image, canvas, 1);
  assert.deepEqual(views.moved(view, 30, -20, image, canvas), { scale: 1, x: view.x + 30, y: view.y - 20 });
  assert.deepEqual(views.moved(view, 1e6, -1e6, image, canvas), { scale: 1, x: 752, y: -952 });
});

test("many small moves are one large one", () => {
  const [image, canvas] = [{ width: 1000, height: 1000 }, { width: 800, height: 800 }];
  const start = views.centred(image, canvas, 0.7);
  let view = start;
  for (let turn = 0; turn < 100; turn += 1) view = views.moved(view, 0.3, -0.4, image, canvas);
  assertNear(view, { x: start.x + 30, y: start.y - 40 }, 1e-6, "after 100 moves");
});

test("the pixel under a place is there once, and beside the image is none", () => {
  for (const { random, view, image, canvas } of randomViews(37, 500)) {
    const [x, y] = [random() * canvas.width, random() * canvas.height];
    const place = views.toImage(view, x, y);
    const isInside = place.x >= 0 && place.y >= 0 && place.x < image.width && place.y < image.height;
    const pixel = views.pixelAt(view, x, y, image);
    assert.deepEqual(pixel, isInside ? { x: Math.floor(place.x), y: Math.floor(place.y) } : null);
    const nearest = views.nearestPixel(view, x, y, image);
    if (pixel) assert.deepEqual(nearest, pixel);
    assert.ok(nearest.x >= 0 && nearest.y >= 0 && nearest.x < image.width && nearest.y < image.height);
    assert.ok(Math.abs(nearest.x + 0.5 - Math.min(image.width, Math.max(0, place.x))) <= 0.5 + 1e-9);
    assert.ok(Math.abs(nearest.y + 0.5 - Math.min(image.height, Math.max(0, place.y))) <= 0.5 + 1e-9);
  }
});

test("the image's edges belong to it on the left and above, and not on the right and below", () => {
  const [view, image] = [{ scale: 2, x: 10, y: 20 }, { width: 3, height: 4 }];
  assert.deepEqual(views.pixelAt(view, 10, 20, image), { x: 0, y: 0 });
  assert.deepEqual(views.pixelAt(view, 15.9, 27.9, image), { x: 2, y: 3 });
  const beside = [[9.9, 20], [10, 19.9], [16, 20], [10, 28]];
  for (const [x, y] of beside) assert.equal(views.pixelAt(view, x, y, image), null);
  assert.deepEqual(views.nearestPixel(view, -500, 500, image), { x: 0, y: 3 });
});
