/**
 * Regions that answer a question, as objects of a document.
 *
 * @typedef {object} Region
 * @property {string} label
 * @property {number[]|null} box  x0, y0, x1, y1 in original pixels
 * @property {import("../core/document.js").Point|null} point  if there is no box
 * @property {import("../core/document.js").Candidate|null} candidate  null: the page asks for the mask, as after a drawn box
 */
import { boxBetween, sameBox } from "../core/box.js";
import * as documents from "../core/document.js";
import { fromCocoRle } from "../core/mask.js";

/** As in the list of objects. */
const LONGEST_NAME = 80;

/** @param {import("../core/grounding.js").Found[]} found @returns {Region[]} */
export const regionsOf = (found) => found.map(({ phrase, box }) => ({ label: nameOf(phrase), box, point: null, candidate: null }));

/**
 * @param {{regions: object[]}} answer of /v1/ground
 * @param {{width: number, height: number}} image
 * @returns {Region[]} those that lie in the image
 * @throws {Error} if a mask is not one of this image
 */
export function regionsIn({ regions }, image) {
  return regions.flatMap(({ label, box, point, mask, score }) => {
    const candidate = mask ? { mask: maskIn(mask.data, image), score: Number(score) || 0 } : null;
    const region = { label: nameOf(label), box: box ? boxBetween(...cornersOf(box), image) : null, point: null, candidate };
    if (region.box) return [region];
    const place = point ?? (box && middleOf(box));
    return place ? [{ ...region, point: pixelOf(place, image) }] : [];
  });
}

const nameOf = (label) => String(label ?? "").trim().slice(0, LONGEST_NAME);
const cornersOf = ([x0, y0, x1, y1]) => [{ x: x0, y: y0 }, { x: x1, y: y1 }];
const middleOf = ([x0, y0, x1, y1]) => [(x0 + x1) / 2, (y0 + y1) / 2];
const within = (value, length) => Math.min(length - 1, Math.max(0, Math.floor(value)));
const pixelOf = ([x, y], { width, height }) => ({ x: within(x, width), y: within(y, height), label: 1 });

function maskIn(data, { width, height }) {
  const mask = fromCocoRle(data);
  if (mask.width !== width || mask.height !== height) throw new Error(`A mask has ${mask.width} x ${mask.height} pixels.`);
  return mask;
}

/**
 * Adds an object for each region that is none yet; none of them is the active one.
 * @param {import("../core/document.js").Document} document @param {Region[]} regions
 */
export const addRegions = (document, regions) => documents.activate(regions.reduce(withRegion, document), null);

function withRegion(document, { label, box, point, candidate }) {
  const isThere = ({ name, box: other, points }) =>
    name === label && (box ? sameBox(other, box) : points.length === 1 && points[0].x === point.x && points[0].y === point.y);
  if (document.things.some(isThere)) return document;
  const fresh = documents.activate(document, null);
  const added = box ? documents.addBox(fresh, box, label) : documents.addPoint(fresh, point);
  const thing = documents.activeThing(added);
  const answer = candidate && { key: documents.promptKey(thing), candidates: [candidate] };
  return documents.describe(added, thing.id, { name: label || thing.name, answer });
}
