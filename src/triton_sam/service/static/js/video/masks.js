/**
 * The masks of a video as run lengths, as they came: of all frames while there is room, then of those that were used last.
 * What was dropped can be had from the server again.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {{object_id: number, mask: import("../core/mask.js").CocoRle, appearance?: number}} Row
 */
import { fromCocoRle } from "../core/mask.js";

const MOST_CHARACTERS = 64_000_000;
/** Of an entry besides its text. */
const OVERHEAD = 200;
/** Frames whose masks are kept decoded: stepping to and fro decodes nothing. */
const DECODED = 12;

export class MaskStore {
  /** @param {number} [most] characters of run lengths */
  constructor(most = MOST_CHARACTERS) {
    this._most = most;
    this._size = 0;
    /** @type {Map<number, Row[]>} by frame, the one that was used last at the end */
    this._rows = new Map();
    /** @type {Map<number, Map<number, Mask>>} */
    this._decoded = new Map();
  }

  get frames() {
    return this._rows.size;
  }

  /** @param {number} frame @param {Row[]} rows of all objects that have a mask there */
  put(frame, rows) {
    this.drop(frame);
    this._rows.set(frame, rows);
    this._size += sizeOf(rows);
    for (const old of this._rows.keys()) {
      if (this._size <= this._most || old === frame) break;
      this.drop(old);
    }
  }

  /** @param {number} frame @returns {Row[]} as they came; none if they are not kept */
  rows = (frame) => this._rows.get(frame) ?? [];

  /** @param {number} frame @returns {Map<number, Mask>|null} by object; null if they are not kept */
  get(frame) {
    const rows = this._rows.get(frame);
    if (!rows) return null;
    touch(this._rows, frame, rows);
    const masks = this._decoded.get(frame) ?? new Map(rows.map(({ object_id: object, mask }) => [object, fromCocoRle(mask)]));
    touch(this._decoded, frame, masks);
    while (this._decoded.size > DECODED) this._decoded.delete(this._decoded.keys().next().value);
    return masks;
  }

  /** @param {number} frame */
  drop(frame) {
    const rows = this._rows.get(frame);
    if (!rows) return;
    this._size -= sizeOf(rows);
    this._rows.delete(frame);
    this._decoded.delete(frame);
  }

  /** @param {number} object of no frame any more */
  removeObject(object) {
    for (const [frame, rows] of [...this._rows]) {
      if (rows.some((row) => row.object_id === object)) this.put(frame, rows.filter((row) => row.object_id !== object));
    }
  }

  clear() {
    this._rows.clear();
    this._decoded.clear();
    this._size = 0;
  }
}

/** @param {import("../core/mask.js").CocoRle} mask @returns {boolean} whether it has an object's pixel; decodes nothing more */
export function hasPixels({ size: [height, width], counts }) {
  let [background, scale] = [0, 1];
  for (let index = 0; index < counts.length; index += 1) {
    const code = counts.charCodeAt(index) - 48;
    background += (code & 0x1f) * scale;
    scale *= 32;
    if (code & 0x20) continue;
    return background !== height * width;
  }
  return false;
}

const sizeOf = (rows) => rows.reduce((sum, { mask }) => sum + mask.counts.length + OVERHEAD, OVERHEAD);

function touch(map, key, value) {
  map.delete(key);
  map.set(key, value);
}
