/**
 * The points and the box corners of the active object as handles: they can be dragged, and points can be selected, moved
 * with the arrow keys and deleted. Places are in device pixels of the canvas.
 *
 * Events: "selection" when another point or none is selected.
 */
import { boxBetween } from "./core/box.js";
import * as documents from "./core/document.js";
import { moveBox, movePoint, removePoint } from "./core/prompt_editing.js";
import { nearestPixel, toImage, toScreen } from "./core/view.js";
import { nudged } from "./crosshair.js";
import { drawBox, drawHandle, drawPoint } from "./draw/marks.js";

/** How near a press must be to a handle's middle, in CSS pixels. */
const REACH = 9;
const REACH_OF_FINGERS = 16;
/** Each corner by the indices of its sides in a box, with those of the opposite corner. */
const CORNERS = [[0, 1, 2, 3], [2, 1, 0, 3], [0, 3, 2, 1], [2, 3, 0, 1]];

export class PromptHandles extends EventTarget {
  /**
   * @param {import("./app.js").App} app
   * @param {import("./draw/stage.js").Stage} stage
   */
  constructor(app, stage) {
    super();
    this._app = app;
    this._stage = stage;
    this._selection = null;
    this._drag = null;
    app.addEventListener("document", () => this._validate());
  }

  /** @returns {documents.Thing|null} the object whose handles are shown */
  get _thing() {
    const active = documents.activeThing(this._app.document);
    return active?.visible ? active : null;
  }

  /** @returns {number|null} index of the selected point of the active object */
  get selected() {
    return this._selection?.index ?? null;
  }

  get isDragging() {
    return this._drag !== null;
  }

  /** @returns {{place: {x: number, y: number}, point?: number, corner?: number[]}|null} the handle here: a point or a corner */
  at(x, y) {
    const thing = this._thing;
    if (!thing) return null;
    const { view, unit } = this._stage;
    const reach = unit * (matchMedia("(pointer: coarse)").matches ? REACH_OF_FINGERS : REACH);
    const distance = (place) => Math.hypot(place.x - x, place.y - y);
    const points = thing.points.map((point) => toScreen(view, point.x + 0.5, point.y + 0.5));
    const near = points.map((place, index) => ({ index, far: distance(place) })).filter(({ far }) => far <= reach);
    if (near.length) {
      const { index } = near.reduce((best, other) => (other.far <= best.far ? other : best));
      return { point: index, place: points[index] };
    }
    const corners = thing.box ? CORNERS.map((corner) => ({ corner, place: toScreen(view, thing.box[corner[0]], thing.box[corner[1]]) })) : [];
    return corners.find(({ place }) => distance(place) <= reach) ?? null;
  }

  // -- dragging ------------------------------------------------------------------------------------------------------

  /** @returns {boolean} whether a handle is dragged from here */
  dragStart(x, y) {
    const handle = this.at(x, y);
    if (!handle) return false;
    // Who takes a handle at its edge does not move it by that.
    const offset = { x: handle.place.x - x, y: handle.place.y - y };
    this._drag = { ...handle, offset, thing: this._thing, after: null, change: null };
    if (handle.point !== undefined) this.select(handle.point);
    return true;
  }

  /** @param {number} when the pointer moved there, performance.now() */
  dragMove(pointerX, pointerY, when) {
    const { point, thing, offset } = this._drag;
    const [x, y] = [pointerX + offset.x, pointerY + offset.y];
    const change = point === undefined ? this._cornerChange(x, y) : this._pointChange(x, y);
    const after = change(this._app.document);
    this._drag.after = documents.activeThing(after);
    if (this._drag.after === thing) this._app.hovering.clear();
    else this._app.hovering.ofThing(this._drag.after, when); // only the newest place is asked for
    this._drag.change = change;
  }

  dragEnd() {
    const { change } = this._drag;
    this._drag = null;
    if (change) this._app.change(change);
  }

  /** @returns {boolean} whether a drag was cancelled */
  cancel() {
    const wasDragging = this.isDragging;
    this._drag = null;
    if (wasDragging) this._app.hovering.clear();
    return wasDragging;
  }

  _pointChange(x, y) {
    const { point, thing } = this._drag;
    const pixel = nearestPixel(this._stage.view, x, y, this._stage.picture);
    return (document) => movePoint(document, thing.id, point, pixel);
  }

  _cornerChange(x, y) {
    const { corner, thing } = this._drag;
    const opposite = { x: thing.box[corner[2]], y: thing.box[corner[3]] };
    const box = boxBetween(opposite, toImage(this._stage.view, x, y), this._stage.picture);
    return (document) => (box ? moveBox(document, thing.id, box) : document); // too small a box is none
  }

  // -- the selected point --------------------------------------------------------------------------------------------

  /** @param {number|null} index */
  select(index) {
    const thing = this._thing;
    const selection = thing && index !== null ? { id: thing.id, index, count: thing.points.length, moved: null } : null;
    if (!selection && !this._selection) return;
    this._selection = selection;
    this._stage.refresh("marks");
    this.dispatchEvent(new Event("selection"));
    if (!selection) return;
    const { x, y, label } = thing.points[index];
    const text = `Point ${index + 1} of ${thing.points.length}, ${label ? "adds" : "takes away"}, x ${x}, y ${y}.`;
    this._app.dispatchEvent(new CustomEvent("announce", { detail: text }));
  }

  /** Selects the next point, after the last one the first. */
  selectNext() {
    const count = this._thing?.points.length ?? 0;
    if (count) this.select(((this.selected ?? -1) + 1) % count);
  }

  /** Moves the selected point by screen pixels. All moves until another is selected are one undo step. */
  nudge(dx, dy) {
    const { id, index, moved } = this._selection;
    const point = this._thing.points[index];
    const place = nudged(point, dx, dy, this._stage);
    const change = (document) => movePoint(document, id, index, place);
    this._selection.moved = place;
    // After an undo the point is elsewhere, and the next move is a step of its own.
    if (moved?.x === point.x && moved.y === point.y) this._app.adjust(change);
    else this._app.change(change);
  }

  /** @returns {boolean} whether there was one */
  removeSelected() {
    if (!this._selection) return false;
    const { id, index } = this._selection;
    this._app.change((document) => removePoint(document, id, index));
    return true;
  }

  /** @returns {boolean} whether a point was here */
  removeAt(x, y) {
    const { point } = this.at(x, y) ?? {};
    if (point === undefined) return false;
    const { id } = this._thing;
    this._app.change((document) => removePoint(document, id, point));
    return true;
  }

  /** Another object, an added or a removed point, and an undo of one end the selection. */
  _validate() {
    const thing = this._thing;
    const { id, count } = this._selection ?? {};
    if (this._selection && (thing?.id !== id || thing.points.length !== count)) this.select(null);
  }

  // -- display -------------------------------------------------------------------------------------------------------

  draw(context, view, unit) {
    const thing = this._drag?.after ?? this._thing;
    if (!thing) return;
    if (thing.box) {
      drawBox(context, view, thing.box, thing.colour, unit);
      for (const [left, top] of CORNERS) drawHandle(context, view, { x: thing.box[left], y: thing.box[top] }, thing.colour, unit);
    }
    thing.points.forEach((point, index) => drawPoint(context, view, point, unit, index === this.selected));
  }
}
