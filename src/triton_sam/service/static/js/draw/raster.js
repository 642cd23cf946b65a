/**
 * Rasterizes masks to screen pixels. Only the visible part is processed, so a 6000 x 4000 mask costs no more than a small one.
 * A screen pixel shows the mask pixel under its centre: at 1:1 exactly the mask.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {import("../core/view.js").View} View
 * @typedef {{x0: number, y0: number, x1: number, y1: number}} Box  device pixels, ends exclusive
 * @typedef {[number, number, number]} Colour  red, green, blue, 0 to 255
 * @typedef {{colour: Colour, fill: number, line: number, lineColour?: Colour, stripes?: number}} Look
 *   fill: opacity of the inside, 0 to 1; line: the outline's width in device pixels, 0 for none; lineColour: the colour if
 *   left out; stripes: the width of diagonal stripes in colour and lineColour, in device pixels, none if left out
 */
import { columnSpans } from "../core/mask_ops.js";

/** A buffer of screen pixels that masks are painted into. */
export class Raster {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.image = new ImageData(width, height);
    this._pixels = new Uint32Array(this.image.data.buffer);
    this._covered = new Uint8Array(width * height);
    this._whole = { x0: 0, y0: 0, x1: width, y1: height };
    /** @type {Box|null} */
    this.dirty = null;
  }

  /** Clears the painted area. @returns {Box|null} that area */
  clear() {
    const box = this.dirty;
    if (box) this.clearBox(box);
    this.dirty = null;
    return box;
  }

  /** @param {Box} box */
  clearBox(box) {
    fillBox(this._pixels, this.width, box, 0);
  }

  /**
   * Paints a mask over the others.
   * @param {Mask} mask @param {View} view @param {Look} look
   * @param {Box} [clip] only this part is painted, as it would be without
   * @returns {Box|null} the painted area
   */
  paint(mask, view, look, clip = this._whole) {
    // An outline inside the clip depends on pixels around it.
    const box = this._cover(mask, view, intersection(grown(clip, look.line), this._whole));
    if (!box) return null;
    const painted = intersection(box, clip);
    if (painted) this._colour(painted, look, view, mask);
    fillBox(this._covered, this.width, box, 0);
    this.dirty = union(this.dirty, painted);
    return painted;
  }

  /** Marks the screen pixels of a mask within a box; a screen column lies in one mask column. */
  _cover(mask, { scale, x: left, y: top }, within) {
    const { offsets, spans, firstColumn, pastLastColumn } = columnSpans(mask);
    const { width, height } = this;
    const covered = this._covered;
    // One more on each side, where the quotient below may round to a column that the product here does not.
    const first = Math.max(within.x0, Math.ceil(left - 0.5), Math.ceil(firstColumn * scale + left - 0.5) - 1);
    const last = Math.min(within.x1, Math.ceil(mask.width * scale + left - 0.5), Math.ceil(pastLastColumn * scale + left - 0.5) + 1);
    let [x0, y0, x1, y1] = [width, height, 0, 0];
    for (let x = first; x < last; x++) {
      const column = Math.floor((x + 0.5 - left) / scale);
      for (let index = offsets[column]; index < offsets[column + 1]; index++) {
        const from = Math.max(within.y0, Math.ceil(spans[2 * index] * scale + top - 0.5));
        const to = Math.min(within.y1, Math.ceil(spans[2 * index + 1] * scale + top - 0.5));
        if (from >= to) continue;
        for (let at = from * width + x, end = to * width; at < end; at += width) covered[at] = 1;
        if (from < y0) y0 = from;
        if (to > y1) y1 = to;
        if (x < x0) x0 = x;
        x1 = x + 1;
      }
    }
    return x1 > x0 ? { x0, y0, x1, y1 } : null;
  }

  _colour({ x0, y0, x1, y1 }, { colour, fill, line, lineColour = colour, stripes = 0 }, view, mask) {
    const { width, height } = this;
    const [covered, pixels] = [this._covered, this._pixels];
    const inside = packed(colour, fill);
    const border = packed(lineColour, 1);
    const [otherInside, otherBorder] = [packed(lineColour, fill), packed(colour, 1)];
    const ends = {
      left: Math.max(0, Math.ceil(view.x - 0.5)),
      right: Math.min(width, Math.ceil(mask.width * view.scale + view.x - 0.5)) - 1,
      top: Math.max(0, Math.ceil(view.y - 0.5)),
      bottom: Math.min(height, Math.ceil(mask.height * view.scale + view.y - 0.5)) - 1,
    };
    for (let y = y0; y < y1; y++) {
      const row = y * width;
      for (let x = x0; x < x1; x++) {
        if (!covered[row + x]) continue;
        const isOther = stripes > 0 && (x + y) % (2 * stripes) < stripes;
        if (line > 0 && this._isNearBorder(x, y, line, ends)) pixels[row + x] = isOther ? otherBorder : border;
        else if (fill > 0) pixels[row + x] = isOther ? otherInside : inside;
      }
    }
  }

  /** Outside the screen and the image the mask is unknown, so no outline is drawn there. */
  _isNearBorder(x, y, line, { left, right, top, bottom }) {
    const { width } = this;
    const covered = this._covered;
    const here = y * width + x;
    for (let far = 1; far <= line; far++) {
      if (y - far >= top && !covered[here - far * width]) return true;
      if (y + far <= bottom && !covered[here + far * width]) return true;
      if (x - far >= left && !covered[here - far]) return true;
      if (x + far <= right && !covered[here + far]) return true;
    }
    return false;
  }
}

/** @param {Colour} colour @param {number} opacity @returns {number} as in the buffer of an ImageData, little-endian */
const packed = ([r, g, b], opacity) => (r | (g << 8) | (b << 16) | (Math.round(opacity * 255) << 24)) >>> 0;

function fillBox(values, width, { x0, y0, x1, y1 }, value) {
  for (let y = y0; y < y1; y++) values.fill(value, y * width + x0, y * width + x1);
}

/** @param {Box} box @param {number} by device pixels on each side */
export const grown = ({ x0, y0, x1, y1 }, by) => ({ x0: x0 - by, y0: y0 - by, x1: x1 + by, y1: y1 + by });

/** @param {Box} a @param {Box} b @returns {Box|null} null if they have no pixel in common */
export function intersection(a, b) {
  const box = { x0: Math.max(a.x0, b.x0), y0: Math.max(a.y0, b.y0), x1: Math.min(a.x1, b.x1), y1: Math.min(a.y1, b.y1) };
  return box.x0 < box.x1 && box.y0 < box.y1 ? box : null;
}

/** @param {Box|null} a @param {Box|null} b @returns {Box|null} */
export function union(a, b) {
  if (!a || !b) return a ?? b;
  return {
    x0: Math.min(a.x0, b.x0),
    y0: Math.min(a.y0, b.y0),
    x1: Math.max(a.x1, b.x1),
    y1: Math.max(a.y1, b.y1),
  };
}
