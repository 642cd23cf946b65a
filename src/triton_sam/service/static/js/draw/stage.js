/**
 * Draws the image and its overlays on four canvases: the image, the masks of objects, the preview mask, and points and
 * cursors. Each canvas is redrawn only when its own content has changed.
 *
 * @typedef {import("../core/mask.js").Mask} Mask
 * @typedef {object} Scene  what to draw
 * @property {{mask: Mask, colour: [number, number, number], isOutline?: boolean}[]} masks  the first lies at the bottom
 * @property {{fill: number, outline: boolean}} look
 * @property {{added: Mask, removed: Mask|null, colour: [number, number, number]}|null} preview  what a click would do;
 *   removed is null for a new object
 * @property {(context: CanvasRenderingContext2D, view: import("../core/view.js").View, unit: number) => void} marks
 */
import { MaskLayer } from "./mask_layer.js";
import { Pyramid } from "./pyramid.js";
import { Raster } from "./raster.js";
import { aligned, fitted, moved, zoomed } from "../core/view.js";

const OUTLINE = 1.5;
const PREVIEW_OUTLINE = 2;
const PREVIEW_FILL = 0.38;
/** What would be added and what would go differ by pattern and not by hue alone: plain with a light outline, and striped. */
const LIGHT = [255, 255, 255];
const DARK = [16, 20, 26];
const ADDED_FILL = 0.6;
const REMOVED_FILL = 0.72;
const STRIPES = 4;
const LAYERS = ["picture", "masks", "preview", "marks"];

export class Stage {
  /**
   * @param {HTMLElement} surface  the element that holds the four canvases
   * @param {() => void} onView  called when the view has changed
   */
  constructor(surface, onView) {
    this.surface = surface;
    this._onView = onView;
    this._contexts = Object.fromEntries(
      LAYERS.map((layer) => [layer, surface.querySelector(`[data-layer=${layer}]`).getContext("2d")]),
    );
    this._stale = new Set();
    this._frame = 0;
    this._isFitted = true;
    /** @type {Pyramid|null} */
    this.picture = null;
    /** @type {import("../core/view.js").View} the view for drawing, with whole offsets */
    this.view = { scale: 1, x: 0, y: 0 };
    this._exact = this.view; // unrounded, or the rounding errors of many small zoom steps would add up
    this.unit = 1;
    this._rasters = null;
    /** @type {Scene} */
    this.scene = { masks: [], look: { fill: 0.5, outline: true }, preview: null, marks: () => {} };
    this._end = new AbortController();
    this._sizes = new ResizeObserver(() => this._resize());
    this._sizes.observe(surface);
    this._watchDensity();
  }

  /** For a surface that leaves the page: else the window would keep all of it. */
  close() {
    this._end.abort();
    this._sizes.disconnect();
    cancelAnimationFrame(this._frame);
  }

  /** Watches the pixel ratio: a window moved to another screen keeps its size in CSS pixels. */
  _watchDensity() {
    const query = matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
    const onChange = () => {
      this._resize();
      this._watchDensity();
    };
    query.addEventListener("change", onChange, { once: true, signal: this._end.signal });
  }

  get size() {
    const { width, height } = this._contexts.picture.canvas;
    return { width, height };
  }

  /** @param {ImageBitmap|null} bitmap */
  show(bitmap) {
    this.picture?.close();
    this.picture = bitmap && new Pyramid(bitmap);
    this.surface.hidden = bitmap === null;
    this._resize();
    this.fit();
  }

  /**
   * A frame of a video, which draws itself and is freed by its owner.
   * @param {{width: number, height: number, draw: Function, close: () => void}} picture
   * @param {boolean} isFirst the view is fitted; else it stays
   */
  put(picture, isFirst) {
    this.picture = picture;
    if (isFirst) {
      this._resize();
      this.fit();
    }
    this.refresh("picture");
  }

  /** Other pixels of the same image; the view stays. @param {ImageBitmap} bitmap perhaps a coarse one */
  replace(bitmap) {
    const before = this.picture;
    this.picture = new Pyramid(bitmap, before);
    before.close();
    this.refresh("picture");
  }

  fit() {
    if (this.picture) this.setView(fitted(this.picture, this.size));
    this._isFitted = true;
  }

  /** Zooms to 1:1 (one image pixel is one screen pixel); the centre stays. */
  showActualSize() {
    this.zoom(1 / this.view.scale);
  }

  setView(view) {
    this._isFitted = false;
    this._exact = view;
    this.view = aligned(view);
    Object.assign(this.surface.dataset, this.view); // for tests
    this.refresh(...LAYERS);
    this._onView();
  }

  /** @param {number} x @param {number} y device pixels */
  zoom(factor, x = this.size.width / 2, y = this.size.height / 2) {
    if (this.picture) this.setView(zoomed(this._exact, factor, x, y, this.picture, this.size));
  }

  move(dx, dy) {
    if (this.picture) this.setView(moved(this._exact, dx, dy, this.picture, this.size));
  }

  /** Draws these layers in the next frame. */
  refresh(...layers) {
    for (const layer of layers) this._stale.add(layer);
    this._frame ||= requestAnimationFrame(() => this.drawNow());
  }

  /** Draws outdated layers at once, for a mask that the user waits for. */
  drawNow() {
    cancelAnimationFrame(this._frame);
    this._frame = 0;
    const stale = this._stale;
    this._stale = new Set();
    if (!this.picture || !this._rasters) return;
    if (stale.has("picture")) this._drawPicture();
    if (stale.has("masks")) this._drawMasks();
    if (stale.has("preview")) this._drawPreview();
    if (stale.has("marks")) this._drawMarks();
  }

  _resize() {
    const { clientWidth, clientHeight } = this.surface;
    if (!clientWidth || !clientHeight) return;
    this.unit = window.devicePixelRatio || 1;
    const width = Math.round(clientWidth * this.unit);
    const height = Math.round(clientHeight * this.unit);
    if (width === this.size.width && height === this.size.height && this._rasters) return;
    const [dx, dy] = [(width - this.size.width) / 2, (height - this.size.height) / 2];
    for (const { canvas } of Object.values(this._contexts)) {
      canvas.width = width;
      canvas.height = height;
      canvas.style.width = `${clientWidth}px`;
      canvas.style.height = `${clientHeight}px`;
    }
    this._rasters = { masks: new MaskLayer(new Raster(width, height)), preview: new Raster(width, height) };
    if (this._isFitted) this.fit();
    else this.move(dx, dy);
    this.drawNow(); // a resized canvas is empty: drawing in the next frame would flicker
  }

  _drawPicture() {
    const context = this._contexts.picture;
    const { width, height } = context.canvas;
    const { view, picture } = this;
    context.clearRect(0, 0, width, height);
    context.fillStyle = "#fff"; // the model sees white under transparent parts
    context.fillRect(view.x, view.y, picture.width * view.scale, picture.height * view.scale);
    picture.draw(context, view);
  }

  _drawMasks() {
    const { fill, outline } = this.scene.look;
    const line = outline ? Math.max(1, Math.round(OUTLINE * this.unit)) : 0;
    const entries = this.scene.masks.map(({ mask, colour, isOutline }) => ({
      mask,
      look: { colour, fill: isOutline ? 0 : fill, line: isOutline ? Math.max(1, line) : line },
    }));
    const { masks } = this._rasters;
    this._put("masks", masks.raster, masks.draw(entries, this.view));
  }

  _drawPreview() {
    const { preview } = this.scene;
    const line = Math.max(1, Math.round(PREVIEW_OUTLINE * this.unit));
    this._repaint((raster) => {
      if (!preview) return;
      const { added, removed, colour } = preview;
      if (!removed) {
        raster.paint(added, this.view, { colour, fill: PREVIEW_FILL, line });
        return;
      }
      const stripes = Math.max(2, Math.round(STRIPES * this.unit));
      raster.paint(added, this.view, { colour, fill: ADDED_FILL, line, lineColour: LIGHT });
      raster.paint(removed, this.view, { colour: DARK, fill: REMOVED_FILL, line, lineColour: LIGHT, stripes });
    });
  }

  /** Replaces old pixels of the preview by new ones in one step, so that no frame is empty. */
  _repaint(paint) {
    const raster = this._rasters.preview;
    const old = raster.clear();
    paint(raster);
    for (const box of [old, raster.dirty]) this._put("preview", raster, box);
  }

  _put(layer, { image }, box) {
    if (box) this._contexts[layer].putImageData(image, 0, 0, box.x0, box.y0, box.x1 - box.x0, box.y1 - box.y0);
  }

  _drawMarks() {
    const context = this._contexts.marks;
    context.clearRect(0, 0, context.canvas.width, context.canvas.height);
    this.scene.marks(context, this.view, this.unit);
  }
}
