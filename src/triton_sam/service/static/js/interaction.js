/**
 * The tools: they turn gestures on the image into changes of the document. Gestures are in device pixels of the canvas.
 *
 * Events: "tool" when tool, sign, brush or mode have changed, "cursor" when the mouse has moved, "found" when other boxes of
 * a model are highlighted.
 */
import { boxBetween, sameBox } from "./core/box.js";
import * as documents from "./core/document.js";
import { isShown } from "./core/found.js";
import { strokeMask, union } from "./core/mask_ops.js";
import { contains } from "./core/mask.js";
import { rgb } from "./core/palette.js";
import { shownMasks } from "./core/scene.js";
import { pixelAt, toImage } from "./core/view.js";
import { Crosshair } from "./crosshair.js";
import { FoundBoxes } from "./draw/found_boxes.js";
import { drawBox, drawBrush, drawPrompt } from "./draw/marks.js";
import { PromptHandles } from "./prompt_handles.js";

/** As in the list of objects. */
const LONGEST_NAME = 80;

export class Interaction extends EventTarget {
  /**
   * @param {import("./app.js").App} app
   * @param {import("./draw/stage.js").Stage} stage
   */
  constructor(app, stage) {
    super();
    this._app = app;
    this._stage = stage;
    /** @type {"point"|"brush"|"eraser"|"pan"} */
    this.tool = "point";
    /** @type {0|1} what a plain click means */
    this.sign = 1;
    /** Original pixels. */
    this.brushRadius = 12;
    this.look = { fill: 0.5, style: "both" };
    /** @type {{x: number, y: number}|null} the mouse, original pixels */
    this.cursor = null;
    /** Whether each click begins an object of its own. */
    this.isOneClick = false;
    this.found = new FoundBoxes();
    this.crosshair = new Crosshair(stage);
    this.handles = new PromptHandles(app, stage);
    /** @type {((context: CanvasRenderingContext2D, view: import("./core/view.js").View, unit: number) => void)[]} of other parts, which call {@link refreshMarks} */
    this.marks = [];
    this._box = null;
    this._stroke = null;
    this._resting = null;
    stage.scene.marks = (context, view, unit) => this._drawMarks(context, view, unit);
    app.images.addEventListener("state", () => app.images.state.phase === "ready" && this.hoverAgain());
    app.addEventListener("document", () => this._showDocument());
    app.addEventListener("finding", () => this._showDocument());
    app.hovering.addEventListener("preview", ({ detail }) => this._showPreview(detail));
    app.addEventListener("picture", () => this._showPicture());
  }

  setTool(tool) {
    this.cancel();
    this.tool = tool;
    this._app.hovering.clear();
    this._changed();
  }

  setSign(sign) {
    this.sign = sign;
    this._changed();
  }

  /** @param {boolean} isOneClick */
  setOneClick(isOneClick) {
    this.isOneClick = isOneClick;
    if (isOneClick) this.finish();
    this._changed();
  }

  setBrush(radius) {
    this.brushRadius = Math.min(200, Math.max(0.5, radius));
    this._changed();
  }

  /** @param {{fill: number, style: "both"|"fill"|"outline"}} look */
  setLook(look) {
    this.look = look;
    this._showDocument();
  }

  // -- gestures ----------------------------------------------------------------------------------------------------

  /** The mouse moves without a button. @param {boolean} takes whether a click here would remove @param {number} when */
  hover(x, y, takes, when) {
    this._resting = { x, y };
    this._at(x, y);
    const pixel = this._pixel(x, y);
    const handle = takes ? null : this._handleAt(x, y);
    const found = handle ? null : this._foundAt(x, y, takes);
    this._stage.surface.classList.toggle("over-handle", handle !== null);
    this.light(found === null ? [] : [found]);
    if (this.tool !== "point" || !pixel || handle || found !== null) {
      this._app.hovering.clear();
      return;
    }
    this._app.hovering.at({ ...pixel, label: this._label(takes) }, when);
  }

  /** The mouse rests, but something else has changed: Shift was pressed, or the image became ready. */
  hoverAgain(takes = false) {
    if (this._box || this._stroke || this.handles.isDragging || this.crosshair.place) return;
    if (this._resting && this.cursor) this.hover(this._resting.x, this._resting.y, takes, performance.now());
  }

  leave() {
    this._resting = null;
    this.cursor = null;
    this._app.hovering.clear();
    this.light([]);
    this.refreshMarks();
    this.dispatchEvent(new Event("cursor"));
  }

  click(x, y, takes) {
    const { point } = (!takes && this._handleAt(x, y)) || {};
    this.handles.select(point ?? null);
    if (point !== undefined) return;
    const found = this._foundAt(x, y, takes);
    if (found !== null) {
      this.takeFound(found);
      return;
    }
    const pixel = this._pixel(x, y);
    if (!pixel) return;
    if (this.tool === "point") this._point(pixel, this._label(takes));
    else if (this._paints) this._app.change((document) => documents.paint(document, this._dab(x, y), this._erases(takes)));
  }

  /** Deletes the point here, or makes the topmost object the active one. */
  select(x, y) {
    if (this.tool === "point" && this.handles.removeAt(x, y)) return;
    const pixel = this._pixel(x, y);
    const { document: shown } = this._app;
    const here = (thing) => isShown(shown, thing) && documents.maskOf(thing) && contains(documents.maskOf(thing), pixel.x, pixel.y);
    const thing = pixel && shown.things.findLast(here);
    if (thing) this._app.adjust((document) => documents.activate(document, thing.id));
  }

  /** @returns {boolean} whether a drag with this tool does something else than move the view */
  get drags() {
    return this.tool !== "pan";
  }

  dragStart(x, y, takes) {
    this._app.hovering.clear();
    const at = toImage(this._stage.view, x, y);
    if (this.tool === "point" && this.handles.dragStart(x, y)) return;
    if (this._paints) this._stroke = { last: at, erases: this._erases(takes), mask: this._dab(x, y) };
    else this._box = { from: at, to: at };
    this._showDocument();
  }

  /**
   * @param {[number, number][]} places since the last call, in order: a mouse reports more often than the screen is drawn
   * @param {number} when performance.now()
   */
  dragMove(places, when) {
    this._at(...places.at(-1));
    if (this.handles.isDragging) {
      this.handles.dragMove(...places.at(-1), when);
      return;
    }
    const points = places.map(([x, y]) => toImage(this._stage.view, x, y));
    if (this._stroke) {
      this._stroke.mask = union(this._stroke.mask, this._strokeOf([this._stroke.last, ...points]));
      this._stroke.last = points.at(-1);
      this._showDocument();
    } else if (this._box) {
      this._box.to = points.at(-1);
      this.refreshMarks();
    }
  }

  dragEnd() {
    if (this.handles.isDragging) {
      this.handles.dragEnd();
      return;
    }
    const [stroke, box] = [this._stroke, this._box && this._boxOf(this._box)];
    this.cancel();
    if (stroke) this._app.change((document) => documents.paint(document, stroke.mask, stroke.erases));
    else if (box) this._begin(box);
  }

  /** Cancels a drag: after a second finger, or Escape. */
  cancel() {
    const wasPainting = this._stroke !== null;
    this._box = this._stroke = null;
    this.handles.cancel();
    if (wasPainting) this._showDocument();
    this.refreshMarks();
  }

  // -- boxes of a model ----------------------------------------------------------------------------------------------

  /** @param {import("./core/grounding.js").Found[]} boxes that replace the earlier ones */
  showFound(boxes) {
    this.found.boxes = boxes;
    this.light([]);
    this.refreshMarks();
  }

  /** @param {number[]} indices of the highlighted boxes */
  light(indices) {
    if (indices.join() === this.found.lit.join()) return;
    this.found.lit = indices;
    this._stage.surface.classList.toggle("over-found", indices.length > 0);
    this.refreshMarks();
    this.dispatchEvent(new Event("found"));
  }

  /** Makes an object from a found box, as if it had been drawn; an existing one becomes the active one. */
  takeFound(index) {
    const { box, phrase } = this.found.boxes[index];
    const name = phrase.slice(0, LONGEST_NAME);
    const thing = this._app.document.things.find((other) => other.name === name && sameBox(other.box, box));
    if (thing) this._app.adjust((document) => documents.activate(document, thing.id));
    else this._begin(box, name);
  }

  _handleAt(x, y) {
    return this.tool === "point" ? this.handles.at(x, y) : null;
  }

  _foundAt(x, y, takes) {
    return this.tool === "point" && this._label(takes) === 1 ? this.found.at(x, y, this._stage.view, this._stage.unit) : null;
  }

  // -- the keyboard ------------------------------------------------------------------------------------------------

  /** Moves the selected point or else the crosshair by screen pixels. */
  nudge(dx, dy) {
    if (this.handles.selected !== null) {
      this.handles.nudge(dx, dy);
      return;
    }
    if (!this.crosshair.nudge(dx, dy)) return;
    this.cursor = this.crosshair.place;
    this.dispatchEvent(new Event("cursor"));
    this.refreshMarks();
    if (this.tool === "point") this._app.hovering.at({ ...this.crosshair.place, label: this.sign }, performance.now());
  }

  /** A click under the crosshair. */
  press(takes) {
    this.handles.select(null);
    if (!this.crosshair.place) this.nudge(0, 0);
    else if (this.tool === "point") this._point(this.crosshair.place, this._label(takes));
  }

  hideCrosshair() {
    if (this.crosshair.hide()) this.refreshMarks();
  }

  finish() {
    this._app.adjust((document) => documents.activate(document, null));
  }

  // -- internal ----------------------------------------------------------------------------------------------------

  get _paints() {
    return this.tool === "brush" || this.tool === "eraser";
  }

  _label(takes) {
    return takes ? 1 - this.sign : this.sign;
  }

  _erases(takes) {
    return (this.tool === "eraser") !== takes;
  }

  _point(pixel, label) {
    const point = { ...pixel, label };
    if (documents.hovered(this._app.document, point)) this._make((document) => documents.addPoint(document, point));
  }

  _pixel(x, y) {
    return this._stage.picture && pixelAt(this._stage.view, x, y, this._stage.picture);
  }

  _at(x, y) {
    this.crosshair.hide();
    this.cursor = this._stage.picture && toImage(this._stage.view, x, y);
    this.refreshMarks();
    this.dispatchEvent(new Event("cursor"));
  }

  _dab(x, y) {
    return this._strokeOf([toImage(this._stage.view, x, y)]);
  }

  _strokeOf(points) {
    const { width, height } = this._stage.picture;
    return strokeMask(width, height, points, this.brushRadius);
  }

  _boxOf({ from, to }) {
    return boxBetween(from, to, this._stage.picture);
  }

  /** @param {number[]} box of a new object @param {string} [name] */
  _begin(box, name) {
    this._make((document) => documents.addBox(document, box, name));
  }

  /** If each click is an object, a new one is finished at once; one that the user has chosen is refined as always. */
  _make(change) {
    this._app.change((document) => {
      const after = change(document);
      return this.isOneClick && after.made > document.made ? documents.activate(after, null) : after;
    });
  }

  // -- display -----------------------------------------------------------------------------------------------------

  _showPicture() {
    this.cancel();
    this.crosshair.hide();
    this._stage.show(this._app.bitmap);
    this._app.bitmap = null; // the stage owns it now, and frees its memory
  }

  _showDocument() {
    const { fill, style } = this.look;
    this._stage.scene.masks = shownMasks(this._app.shownDocument, this._stroke, this._paints, this._app.classes.active?.colour);
    this._stage.scene.look = { fill: style === "outline" ? 0 : fill, outline: style !== "fill" };
    this._stage.refresh("masks");
    this.refreshMarks();
  }

  /** @param {{moved: number, serverMs: number}|null} timing of the mask that is shown; null if there is none */
  _showPreview(timing) {
    const { preview } = this._app.hovering;
    this._stage.scene.preview = preview && { ...preview, colour: rgb(preview.colour) };
    this._stage.refresh("preview");
    this._stage.drawNow();
    if (!timing) return;
    // For the browser's profiler and for tests: the time from the mouse move to the drawn mask.
    performance.measure("hover", { start: timing.moved, end: performance.now(), detail: { serverMs: timing.serverMs } });
    performance.clearMeasures("hover");
  }

  refreshMarks() {
    this._stage.refresh("marks");
  }

  _drawMarks(context, view, unit) {
    this.found.draw(context, view, unit);
    for (const thing of this._app.document.things) if (documents.isUnseen(thing)) drawPrompt(context, view, thing, unit);
    for (const draw of this.marks) draw(context, view, unit);
    this.handles.draw(context, view, unit);
    const box = this._box && this._boxOf(this._box);
    if (box) drawBox(context, view, box, "#0b5cc2", unit);
    if (this._paints && this.cursor && !this.crosshair.place) drawBrush(context, view, this.cursor, this.brushRadius, unit);
    this.crosshair.draw(context, view, unit);
  }

  _changed() {
    this._showDocument();
    this.dispatchEvent(new Event("tool"));
  }
}
