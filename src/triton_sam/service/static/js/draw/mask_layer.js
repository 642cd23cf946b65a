/**
 * Paints the masks of all objects, and after a change only where something has changed: with hundreds of objects, painting
 * all of them for every click would be felt.
 *
 * @typedef {import("./raster.js").Box} Box
 * @typedef {import("./raster.js").Look} Look
 * @typedef {{mask: import("../core/mask.js").Mask, look: Look}} Entry
 */
import { grown, intersection, union } from "./raster.js";
import { bounds } from "../core/mask.js";

export class MaskLayer {
  /** @param {import("./raster.js").Raster} raster */
  constructor(raster) {
    this.raster = raster;
    this._view = null;
    /** @type {(Entry & {box: Box|null})[]} what is painted */
    this._painted = [];
  }

  /**
   * @param {Entry[]} entries the first lies at the bottom
   * @param {import("../core/view.js").View} view
   * @returns {Box|null} the part of the raster that may have changed
   */
  draw(entries, view) {
    const isSameView = this._view !== null && ["scale", "x", "y"].every((name) => view[name] === this._view[name]);
    if (!isSameView) return this._drawAll(entries, view);
    const before = this._painted;
    const shorter = Math.min(before.length, entries.length);
    let start = 0;
    while (start < shorter && isSame(before[start], entries[start])) start += 1;
    let end = 0;
    while (end < shorter - start && isSame(before.at(-1 - end), entries.at(-1 - end))) end += 1;
    const changed = entries.slice(start, entries.length - end).map((entry) => ({ ...entry, box: this._boxOf(entry, view) }));
    const replaced = before.slice(start, before.length - end);
    this._painted = [...before.slice(0, start), ...changed, ...before.slice(before.length - end)];
    const region = [...replaced, ...changed].reduce((all, { box }) => union(all, box), null);
    if (!region) return null;
    this.raster.clearBox(region);
    for (const { mask, look, box } of this._painted) {
      if (box && intersection(box, region)) this.raster.paint(mask, view, look, region);
    }
    return region;
  }

  _drawAll(entries, view) {
    const old = this.raster.clear();
    this._view = view;
    this._painted = entries.map((entry) => {
      const isOnScreen = this._boxOf(entry, view) !== null;
      return { ...entry, box: isOnScreen ? this.raster.paint(entry.mask, view, entry.look) : null };
    });
    return union(old, this.raster.dirty);
  }

  /** A little too large: rounding must not cut pixels off. @returns {Box|null} of a mask on the screen */
  _boxOf({ mask }, { scale, x, y }) {
    const box = bounds(mask);
    if (!box) return null;
    const onScreen = {
      x0: Math.floor(box.x * scale + x),
      y0: Math.floor(box.y * scale + y),
      x1: Math.ceil((box.x + box.width) * scale + x),
      y1: Math.ceil((box.y + box.height) * scale + y),
    };
    const { width, height } = this.raster;
    return intersection(grown(onScreen, 1), { x0: 0, y0: 0, x1: width, y1: height });
  }
}

const isSame = (a, b) =>
  a.mask === b.mask && a.look.fill === b.look.fill && a.look.line === b.look.line && a.look.colour.every((part, index) => part === b.look.colour[index]);
