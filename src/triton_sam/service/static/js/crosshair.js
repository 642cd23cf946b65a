/** The keyboard's crosshair on the image. */
import { nearestPixel, toScreen } from "./core/view.js";
import { drawCrosshair } from "./draw/marks.js";

/** CSS pixels that stay visible around it. */
const MARGIN = 24;

export class Crosshair {
  /** @param {import("./draw/stage.js").Stage} stage */
  constructor(stage) {
    this._stage = stage;
    /** @type {{x: number, y: number}|null} whole original pixels; null while the mouse is used */
    this.place = null;
  }

  /** Moves it by screen pixels; it starts in the middle. @returns {boolean} whether there is an image */
  nudge(dx, dy) {
    const { picture, view, size } = this._stage;
    if (!picture) return false;
    const from = this.place ?? nearestPixel(view, size.width / 2, size.height / 2, picture);
    this.place = nudged(from, dx, dy, this._stage);
    this._bringIntoView(this.place);
    return true;
  }

  hide() {
    const wasShown = this.place !== null;
    this.place = null;
    return wasShown;
  }

  draw(context, view, unit) {
    if (this.place) drawCrosshair(context, view, this.place, unit);
  }

  _bringIntoView({ x, y }) {
    const { view, size, unit } = this._stage;
    const at = toScreen(view, x + 0.5, y + 0.5);
    const beyond = (value, length) => Math.max(0, MARGIN * unit - value) + Math.min(0, length - MARGIN * unit - value);
    const [dx, dy] = [beyond(at.x, size.width), beyond(at.y, size.height)];
    if (dx || dy) this._stage.move(dx, dy);
  }
}

/**
 * @param {{x: number, y: number}} from whole original pixels
 * @param {number} dx @param {number} dy screen pixels; at least one original pixel each
 * @param {import("./draw/stage.js").Stage} stage
 * @returns {{x: number, y: number}} within the image
 */
export function nudged(from, dx, dy, { picture, view, unit }) {
  const least = Math.max(1, Math.round(unit / view.scale));
  const within = (value, length) => Math.min(length - 1, Math.max(0, value));
  return { x: within(from.x + dx * least, picture.width), y: within(from.y + dy * least, picture.height) };
}
