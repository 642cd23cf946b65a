/**
 * Grounded answers: which phrases refer to which boxes in the image, and their layout on the screen.
 *
 * @typedef {{phrase: string, start: number, end: number, boxes: number[][]}} Entity  places in the text are those of Python:
 *   characters, not UTF-16 units; boxes in original pixels
 * @typedef {{phrase: string, entity: number, box: number[]}} Found  one box of an entity, ready to be a prompt
 * @typedef {{x: number, y: number, width: number, height: number}} Rectangle
 * @typedef {{index: number, frame: Rectangle, label: Rectangle|null}} Shape  device pixels; no label beside the screen
 */
import { boxBetween } from "./box.js";
import { toScreen } from "./view.js";

/** How often overlapping labels are moved apart. */
const MOST_MOVES = 8;

/** @param {unknown} entities from the response @returns {Entity[]} the valid ones */
export function sound(entities) {
  if (!Array.isArray(entities)) return [];
  return entities.filter((entity) => typeof entity?.phrase === "string" && entity.phrase.trim() && Array.isArray(entity.boxes));
}

/** @param {Entity[]} entities @param {{width: number, height: number}} image @returns {Found[]} */
export function foundIn(entities, image) {
  return entities.flatMap(({ phrase, boxes }, entity) =>
    boxes.flatMap((corners) => {
      if (!Array.isArray(corners) || corners.length !== 4 || !corners.every(Number.isFinite)) return [];
      const [x0, y0, x1, y1] = corners;
      const box = boxBetween({ x: x0, y: y0 }, { x: x1, y: y1 }, image);
      return box ? [{ phrase: phrase.trim(), entity, box }] : [];
    }));
}

/**
 * The answer split into parts, each with the entity that it names.
 * @param {string} text @param {Entity[]} entities
 * @returns {{text: string, entity: number|null}[]} together they are the text; of entities that overlap the first counts
 */
export function marked(text, entities) {
  const characters = [...text];
  const spans = entities
    .map(({ start, end }, entity) => ({ start, end, entity }))
    .filter(({ start, end }) => Number.isInteger(start) && Number.isInteger(end) && start >= 0 && start < end && end <= characters.length)
    .sort((a, b) => a.start - b.start || b.end - a.end);
  const pieces = [];
  let at = 0;
  const take = (to, entity) => {
    if (to > at) pieces.push({ text: characters.slice(at, to).join(""), entity });
    at = Math.max(at, to);
  };
  for (const { start, end, entity } of spans) {
    if (start < at) continue;
    take(start, null);
    take(end, entity);
  }
  take(characters.length, null);
  return pieces;
}

/**
 * The layout of boxes and labels on the screen. The smallest box comes first: it is on top, and its label is placed first.
 * @param {Found[]} found
 * @param {import("./view.js").View} view
 * @param {{width: number, height: number}} canvas
 * @param {number} height of a label @param {(found: Found) => number} widthOf a label
 * @returns {Shape[]}
 */
export function laidOut(found, view, canvas, height, widthOf) {
  const labels = [];
  return found
    .map(({ box }, index) => ({ index, frame: frameOf(box, view) }))
    .sort((a, b) => a.frame.width * a.frame.height - b.frame.width * b.frame.height)
    .map(({ index, frame }) => {
      if (!overlap(frame, { x: 0, y: 0, width: canvas.width, height: canvas.height })) return { index, frame, label: null };
      const width = widthOf(found[index]);
      const x = Math.max(0, Math.min(frame.x, canvas.width - width));
      // Above the box, or inside it if there is no room above.
      const label = { x, y: frame.y >= height ? frame.y - height : Math.max(0, frame.y), width, height };
      for (let moves = 0; moves < MOST_MOVES && labels.some((other) => overlap(other, label)); moves += 1) label.y += height;
      labels.push(label);
      return { index, frame, label };
    });
}

/** @param {Shape[]} shapes of {@link laidOut} @param {number} reach how far beside an edge a click may be @returns {number|null} the index */
export function shapeAt(shapes, x, y, reach) {
  const named = shapes.find(({ label }) => label && isWithin(label, x, y, 0));
  const edged = ({ frame }) => isWithin(frame, x, y, reach) && !isWithin(frame, x, y, -reach);
  return (named ?? shapes.find(edged))?.index ?? null;
}

function frameOf([x0, y0, x1, y1], view) {
  const from = toScreen(view, x0, y0);
  const to = toScreen(view, x1, y1);
  return { x: from.x, y: from.y, width: to.x - from.x, height: to.y - from.y };
}

const overlap = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

const isWithin = (box, x, y, by) => x >= box.x - by && y >= box.y - by && x <= box.x + box.width + by && y <= box.y + box.height + by;
