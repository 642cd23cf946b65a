/** Draws points, boxes and cursors over the masks. Signs differ in shape too, for red-green colour blindness. */
import { toScreen } from "../core/view.js";

const ADDS = "#12a150";
const TAKES = "#d92d20";

/** @param {CanvasRenderingContext2D} context @param {number} unit device pixels of a CSS pixel @param {boolean} [isSelected] */
export function drawPoint(context, view, { x, y, label }, unit, isSelected = false) {
  const at = toScreen(view, x + 0.5, y + 0.5);
  const radius = 6.5 * unit;
  if (isSelected) drawRing(context, at, radius + 4 * unit, unit);
  context.beginPath();
  context.arc(at.x, at.y, radius, 0, 2 * Math.PI);
  context.fillStyle = label ? ADDS : TAKES;
  context.fill();
  context.lineWidth = 1.5 * unit;
  context.strokeStyle = "#fff";
  context.stroke();
  const arm = 3 * unit;
  context.beginPath();
  context.moveTo(at.x - arm, at.y);
  context.lineTo(at.x + arm, at.y);
  if (label) {
    context.moveTo(at.x, at.y - arm);
    context.lineTo(at.x, at.y + arm);
  }
  context.stroke();
}

/** Around a selected point; dark and light, so that it shows on any image. */
function drawRing(context, at, radius, unit) {
  for (const [width, style] of [[5, "rgb(0 0 0 / 75%)"], [2.5, "#fff"]]) {
    context.beginPath();
    context.arc(at.x, at.y, radius, 0, 2 * Math.PI);
    context.lineWidth = width * unit;
    context.strokeStyle = style;
    context.stroke();
  }
}

/** The corner of a box, which can be dragged. @param {{x: number, y: number}} place original pixels, continuous */
export function drawHandle(context, view, place, colour, unit) {
  const at = toScreen(view, place.x, place.y);
  const half = 4 * unit;
  context.fillStyle = "#fff";
  context.fillRect(at.x - half, at.y - half, 2 * half, 2 * half);
  context.lineWidth = 1.5 * unit;
  context.strokeStyle = colour;
  context.strokeRect(at.x - half, at.y - half, 2 * half, 2 * half);
}

/** @param {number[]} box x0, y0, x1, y1 in original pixels */
export function drawBox(context, view, box, colour, unit) {
  const from = toScreen(view, box[0], box[1]);
  const to = toScreen(view, box[2], box[3]);
  context.setLineDash([6 * unit, 4 * unit]);
  for (const [width, style] of [[3.5, "rgb(255 255 255 / 85%)"], [1.5, colour]]) {
    context.lineWidth = width * unit;
    context.strokeStyle = style;
    context.strokeRect(from.x, from.y, to.x - from.x, to.y - from.y);
  }
  context.setLineDash([]);
}

/** What was asked about an object. @param {import("../core/document.js").Thing} thing */
export function drawPrompt(context, view, { box, points, colour }, unit) {
  if (box) drawBox(context, view, box, colour, unit);
  for (const point of points) drawPoint(context, view, point, unit);
}

/** @param {number} radius original pixels */
export function drawBrush(context, view, { x, y }, radius, unit) {
  const at = toScreen(view, x, y);
  for (const [width, style] of [[3, "rgb(0 0 0 / 60%)"], [1.25, "#fff"]]) {
    context.beginPath();
    context.arc(at.x, at.y, Math.max(1.5 * unit, radius * view.scale), 0, 2 * Math.PI);
    context.lineWidth = width * unit;
    context.strokeStyle = style;
    context.stroke();
  }
}

/** The keyboard's crosshair. */
export function drawCrosshair(context, view, { x, y }, unit) {
  const at = toScreen(view, x + 0.5, y + 0.5);
  const arm = 14 * unit;
  const gap = 4 * unit;
  for (const [width, style] of [[4, "rgb(0 0 0 / 65%)"], [1.5, "#fff"]]) {
    context.beginPath();
    for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(at.x + dx * gap, at.y + dy * gap);
      context.lineTo(at.x + dx * arm, at.y + dy * arm);
    }
    context.lineWidth = width * unit;
    context.strokeStyle = style;
    context.stroke();
  }
}
