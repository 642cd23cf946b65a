import assert from "node:assert/strict";
import test from "node:test";

import { looksOther } from "../../src/triton_sam/service/static/js/image_decoding.js";

const ALPHA = 0b1_0000;
const EXIF = 0b1000;
const XMP = 0b100;
const ANIMATION = 0b10;
const PROFILE = 0b10_0000;

const bytes = (text) => [...text].map((character) => character.charCodeAt(0));
const bigEndian = (number) => [number >>> 24, (number >>> 16) & 255, (number >>> 8) & 255, number & 255];
const littleEndian = (number) => bigEndian(number).reverse();
const head = (...parts) => Uint8Array.from(parts.flat()).slice(0, 32);

/** A PNG's beginning; colour: 0 grey, 2 RGB, 3 palette, 4 and 6 the same with alpha. */
const png = (depth, colour, width = 640, height = 480) =>
  head(
    [0x89, ...bytes("PNG\r\n"), 0x1a, 0x0a],
    [...bigEndian(13), ...bytes("IHDR"), ...bigEndian(width), ...bigEndian(height), depth, colour, 0, 0, 0],
    [1, 2, 3, 4],
  );

const webp = (chunk, flags) =>
  head(
    [...bytes("RIFF"), ...littleEndian(5000), ...bytes(`WEBP${chunk}`), ...littleEndian(10)],
    [flags, 0, 0, 0],
    [255, 1, 0, 99, 0, 0],
  );

test("a PNG of 16 bits looks other in a browser, whatever its colours, and one of fewer bits does not", () => {
  for (const colour of [0, 2, 4, 6]) assert.equal(looksOther(png(16, colour)), true, `16 bits, colour ${colour}`);
  const others = [[1, 0], [2, 0], [4, 0], [8, 0], [1, 3], [2, 3], [4, 3], [8, 3], [8, 2], [8, 4], [8, 6]];
  for (const [depth, colour] of others) {
    assert.equal(looksOther(png(depth, colour)), false, `${depth} bits, colour ${colour}`);
  }
  assert.equal(looksOther(png(8, 2, 16, 16)), false, "a side of 16 is no depth");
  assert.equal(looksOther(png(8, 2, 0x10101010, 0x10101010)), false);
});

test("a WebP with EXIF may be turned, which browsers do not see; with anything else it is not", () => {
  for (const flags of [EXIF, EXIF | ALPHA, EXIF | PROFILE | XMP | ANIMATION | ALPHA]) {
    assert.equal(looksOther(webp("VP8X", flags)), true, flags.toString(2));
  }
  for (const flags of [0, ALPHA, XMP, ANIMATION, PROFILE, ALPHA | XMP | ANIMATION | PROFILE]) {
    assert.equal(looksOther(webp("VP8X", flags)), false, flags.toString(2));
  }
});

test("a plain WebP has no flags, whatever lies at their place", () => {
  for (const chunk of ["VP8 ", "VP8L"]) {
    for (const value of [0, EXIF, 255]) assert.equal(looksOther(webp(chunk, value)), false, `${chunk} ${value}`);
  }
});

test("other files are shown by the browser as they are, or not at all", () => {
  const filler = new Array(32).fill(16); // a depth of 16 where a PNG has it
  const flags = new Array(32).fill(EXIF); // and EXIF where a WebP tells of it
  const beginnings = {
    jpeg: [0xff, 0xd8, 0xff, 0xe1, 0, 24, ...bytes("Exif\0\0")],
    gif: bytes("GIF89a"),
    bmp: bytes("BM"),
    tiff: [...bytes("II*\0"), 8, 0, 0, 0],
    avif: [0, 0, 0, 32, ...bytes("ftypavif")],
    wave: [...bytes("RIFF"), 1, 2, 3, 4, ...bytes("WAVEVP8X")],
    "a WebP elsewhere": [...bytes("XIFF"), 1, 2, 3, 4, ...bytes("WEBPVP8X")],
    jng: [0x8b, ...bytes("JNG\r\n"), 0x1a, 0x0a],
    text: bytes("a text"),
    nothing: [],
  };
  for (const [name, beginning] of Object.entries(beginnings)) {
    for (const rest of [filler, flags]) {
      assert.equal(looksOther(head(beginning, rest.slice(beginning.length))), false, name);
    }
  }
});

test("a file that is cut short is left to the browser, at any length", () => {
  for (const whole of [png(16, 0), webp("VP8X", EXIF)]) {
    const needed = whole[0] === 0x89 ? 25 : 21;
    for (let length = 0; length <= whole.length; length += 1) {
      assert.equal(looksOther(whole.slice(0, length)), length >= needed, `${length} bytes`);
    }
  }
});
