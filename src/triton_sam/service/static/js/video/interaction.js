/** Gestures on the frame -> prompts of the selected object; and what is drawn of them. Gestures are in device pixels. */
import { boxBetween } from "../core/box.js";
import { contains } from "../core/mask.js";
import { pixelAt, toImage, toScreen } from "../core/view.js";
import { Crosshair } from "../crosshair.js";
import { drawBox, drawPoint } from "../draw/marks.js";
import { colourOf, hexOf } from "./colours.js";

/** CSS pixels from a point's middle. */
const REACH = 11;
const RING = 10;

export class VideoInteraction {
  /**
   * @param {import("./film.js").Film} film
   * @param {import("./viewing.js").Viewing} viewing
   * @param {import("./editing.js").Editing} editing
   * @param {import("../draw/stage.js").Stage} stage
   */
  constructor(film, viewing, editing, stage) {
    Object.assign(this, { _film: film, _viewing: viewing, _editing: editing, _stage: stage });
    this.crosshair = new Crosshair(stage);
    /** @type {0|1} what a plain click means */
    this.sign = 1;
    this.drags = true;
    this._box = null;
    stage.scene.marks = (context, view, unit) => this._draw(context, view, unit);
  }

  hover() {
    if (this.crosshair.hide()) this._refresh();
  }

  hoverAgain() {}

  leave() {}

  click(x, y, takes) {
    const pixel = pixelAt(this._stage.view, x, y, this._film.info);
    if (pixel) this._point(pixel, takes);
  }

  /** Deletes the point here, or selects the topmost object. */
  select(x, y) {
    const { shown } = this._viewing;
    const film = this._film;
    const hit = this._pointAt(x, y, shown);
    if (hit) {
      this._editing.removePoint(hit.object, shown, hit.index);
      return;
    }
    const pixel = pixelAt(this._stage.view, x, y, film.info);
    const masks = film.masks.get(shown) ?? new Map();
    const here = film.objects.findLast(({ id, isVisible }) => isVisible && masks.has(id) && contains(masks.get(id), pixel?.x, pixel?.y));
    if (here) film.select(here.id);
  }

  dragStart(x, y) {
    const at = toImage(this._stage.view, x, y);
    this._box = { from: at, to: at };
  }

  dragMove(places) {
    if (!this._box) return;
    this._box.to = toImage(this._stage.view, ...places.at(-1));
    this._refresh();
  }

  dragEnd() {
    const box = this._box && boxBetween(this._box.from, this._box.to, this._film.info);
    this.cancel();
    if (box) this._editing.setBox(this._viewing.shown, box);
  }

  cancel() {
    this._box = null;
    this._refresh();
  }

  // -- the keyboard ------------------------------------------------------------------------------------------------

  nudge(dx, dy) {
    if (this.crosshair.nudge(dx, dy)) this._refresh();
  }

  /** A click under the crosshair. */
  press(takes) {
    if (!this.crosshair.place) this.nudge(0, 0);
    else this._point(this.crosshair.place, takes);
  }

  // -- internal ----------------------------------------------------------------------------------------------------

  _point(pixel, takes) {
    const label = takes ? 1 - this.sign : this.sign;
    if (this._viewing.shown !== null) this._editing.addPoint(this._viewing.shown, { ...pixel, label });
  }

  _pointAt(x, y, frame) {
    const { prompts, objects } = this._film;
    const { view, unit } = this._stage;
    for (const { id } of objects) {
      const index = prompts.get(id, frame).points.findIndex((point) => {
        const at = toScreen(view, point.x + 0.5, point.y + 0.5);
        return Math.hypot(at.x - x, at.y - y) <= REACH * unit;
      });
      if (index >= 0) return { object: id, index };
    }
    return null;
  }

  _refresh() {
    this._stage.refresh("marks");
  }

  _draw(context, view, unit) {
    const { prompts, objects, selected, info } = this._film;
    for (const { id, isVisible } of objects) {
      if (!isVisible) continue;
      const { points, box } = prompts.get(id, this._viewing.shown);
      if (box) drawBox(context, view, box, hexOf(id), unit);
      for (const point of points) drawMark(context, view, point, colourOf(id), unit);
    }
    const box = this._box && boxBetween(this._box.from, this._box.to, info);
    if (box) drawBox(context, view, box, hexOf(selected), unit);
    this.crosshair.draw(context, view, unit);
  }
}

/** A point with a ring in its object's colour: plus and minus tell what it means. */
function drawMark(context, view, point, colour, unit) {
  const at = toScreen(view, point.x + 0.5, point.y + 0.5);
  for (const [width, style] of [[5, "rgb(0 0 0 / 70%)"], [3, `rgb(${colour.join(" ")})`]]) {
    context.beginPath();
    context.arc(at.x, at.y, RING * unit, 0, 2 * Math.PI);
    context.lineWidth = width * unit;
    context.strokeStyle = style;
    context.stroke();
  }
  drawPoint(context, view, point, unit);
}
