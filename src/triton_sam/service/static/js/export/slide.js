/** A picture for a slide: the image with its masks, and a legend with their names below. */
import { rgb } from "../core/palette.js";
import { Raster } from "../draw/raster.js";
import { pngOfBitmap } from "./canvas_png.js";

const LONGEST_SIDE = 2400;
const INK = "#15202b";

/**
 * @param {import("../draw/pyramid.js").Pyramid} picture
 * @param {{name: string, colour: string, mask: import("../core/mask.js").Mask}[]} objects the first lies at the bottom
 * @param {{fill: number, outline: boolean}} look
 * @returns {Promise<Blob>} PNG
 */
export async function slide(picture, objects, look) {
  const scale = Math.min(1, LONGEST_SIDE / Math.max(picture.width, picture.height));
  const width = Math.round(picture.width * scale);
  const height = Math.round(picture.height * scale);
  const type = Math.max(14, Math.round(width / 55));
  const rows = legendRows(objects, width, type);
  const canvas = sized(width, height + rows.length * type * 2 + (rows.length ? type : 0));
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  picture.draw(context, { scale, x: 0, y: 0 });
  context.drawImage(masksCanvas(objects, width, height, scale, look), 0, 0);
  drawLegend(context, rows, height, type);
  return pngOfBitmap(await createImageBitmap(canvas));
}

function masksCanvas(objects, width, height, scale, { fill, outline }) {
  const raster = new Raster(width, height);
  const line = outline ? Math.max(1, Math.round(width / 500)) : 0;
  for (const { mask, colour } of objects) raster.paint(mask, { scale, x: 0, y: 0 }, { colour: rgb(colour), fill, line });
  const canvas = sized(width, height);
  canvas.getContext("2d").putImageData(raster.image, 0, 0);
  return canvas;
}

function legendRows(objects, width, type) {
  const context = sized(1, 1).getContext("2d");
  context.font = font(type);
  const rows = [];
  let right = Infinity;
  for (const { name, colour } of objects) {
    const needed = type * 3 + context.measureText(name).width;
    if (right + needed > width) {
      rows.push([]);
      right = type;
    }
    rows.at(-1).push({ name, colour, x: right });
    right += needed;
  }
  return rows;
}

function drawLegend(context, rows, top, type) {
  context.font = font(type);
  context.textBaseline = "middle";
  rows.forEach((row, number) => {
    const y = top + type * (1.5 + 2 * number);
    for (const { name, colour, x } of row) {
      context.fillStyle = colour;
      context.fillRect(x, y - type / 2, type, type);
      context.fillStyle = INK;
      context.fillText(name, x + type * 1.5, y);
    }
  });
}

const font = (size) => `${size}px system-ui, "DejaVu Sans", sans-serif`;

function sized(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}
