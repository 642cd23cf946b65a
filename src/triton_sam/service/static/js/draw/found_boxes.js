/** Draws a model's boxes with their names over the image, readable on any image. They are not exported. */
import { laidOut, shapeAt } from "../core/grounding.js";

const FONT_SIZE = 12;
const LABEL_HEIGHT = 19;
const PADDING = 6;
const MOST_LETTERS = 32;
const DARK = "rgb(10 16 22 / 82%)";
const LIGHT = "#f3f6f9";
const LIT = "#ffd02f";
/** Tolerance of a click on an edge, in CSS pixels. */
const REACH = 6;
const REACH_OF_FINGERS = 12;

export class FoundBoxes {
  constructor() {
    /** @type {import("../core/grounding.js").Found[]} */
    this.boxes = [];
    this.isShown = true;
    /** @type {number[]} indices of the highlighted boxes */
    this.lit = [];
    this._context = null;
  }

  /** @param {number} unit device pixels of a CSS pixel */
  draw(context, view, unit) {
    this._context = context;
    const fromBottom = this._shapes(view, unit).reverse();
    context.textBaseline = "middle";
    for (const { frame, index } of fromBottom) {
      for (const [width, style] of [[4, DARK], [1.75, this.lit.includes(index) ? LIT : LIGHT]]) {
        context.lineWidth = width * unit;
        context.strokeStyle = style;
        context.strokeRect(frame.x, frame.y, frame.width, frame.height);
      }
    }
    for (const { label, index } of fromBottom) {
      if (!label) continue;
      const isLit = this.lit.includes(index);
      context.fillStyle = isLit ? LIT : DARK;
      context.fillRect(label.x, label.y, label.width, label.height);
      context.fillStyle = isLit ? "#15202b" : LIGHT;
      context.fillText(shortened(this.boxes[index].phrase), label.x + PADDING * unit, label.y + label.height / 2);
    }
  }

  /** @param {number} x @param {number} y device pixels @returns {number|null} the index of the box whose edge or name is here */
  at(x, y, view, unit) {
    const reach = matchMedia("(pointer: coarse)").matches ? REACH_OF_FINGERS : REACH;
    return shapeAt(this._shapes(view, unit), x, y, reach * unit);
  }

  _shapes(view, unit) {
    if (!this.isShown || !this.boxes.length || !this._context) return [];
    this._context.font = `${FONT_SIZE * unit}px system-ui, sans-serif`;
    const widthOf = ({ phrase }) => this._context.measureText(shortened(phrase)).width + 2 * PADDING * unit;
    return laidOut(this.boxes, view, this._context.canvas, LABEL_HEIGHT * unit, widthOf);
  }
}

const shortened = (text) => (text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS - 1)}…` : text);
