/**
 * The document: the objects of one image in drawing order. Every function takes a document and returns a new one (or the
 * same, if nothing changes). Documents are immutable, so that the undo history is a list of documents.
 *
 * @typedef {import("./mask.js").Mask} Mask
 * @typedef {{x: number, y: number, label: 0|1}} Point  whole original pixels; 1 object, 0 background
 * @typedef {{mask: Mask, score: number}} Candidate
 * @typedef {object} Thing  one object; not called "object", which has another meaning in JavaScript
 * @property {string} id
 * @property {string} name
 * @property {string} colour  "#rrggbb"
 * @property {boolean} visible
 * @property {Point[]} points
 * @property {number[]|null} box  x0, y0, x1, y1 in original pixels
 * @property {number|null} pick  index of the chosen candidate; null: the one with the best score
 * @property {{key: string, candidates: Candidate[]}|null} answer  the latest response, and the key of its prompt
 * @property {Mask|null} added  painted by hand, on top of the model's mask
 * @property {Mask|null} removed  erased by hand
 * @property {Mask|null} [base]  an imported mask: clicks add to it or take from it
 * @property {boolean} [takes]  whether the clicks since then take from the base
 * @property {string|null} [classId]  of the project's classes; a deleted one is none
 * @property {boolean} [hasOwnColour]  whether the user chose its colour; otherwise it is that of the class
 * @property {{score: number, classId: string|null, words?: string, isAccepted?: boolean}} [found]  by a find, with the mask as base;
 *   the score of that mask, the class that it was given then, what was looked for, and whether the user wants to keep it
 * @typedef {object} Document
 * @property {Thing[]} things  things[0] lies at the bottom
 * @property {string|null} activeId
 * @property {number} made
 * @property {import("./found.js").Filter} [filter]  hides objects that were found; no undo step
 */
import { nextColour } from "./palette.js";
import { contains, emptyMask, equal } from "./mask.js";
import { cleanMask } from "./mask_cleaning.js";
import { subtract, union } from "./mask_ops.js";

/** @returns {Document} */
export const newDocument = () => ({ things: [], activeId: null, made: 0 });

/** @param {Document} document @returns {Thing|null} the object that clicks refine */
export const activeThing = (document) => document.things.find((thing) => thing.id === document.activeId) ?? null;

/** The default name of an object. @param {string} id */
export const givenName = (id) => id.replace("object-", "Object ");

/** What all objects begin with. */
export const NOTHING_YET = { visible: true, points: [], box: null, pick: null, answer: null, added: null, removed: null };

function withNewThing(document, fields) {
  const made = document.made + 1;
  const id = `object-${made}`;
  const thing = {
    id,
    name: givenName(id),
    colour: nextColour(document.things.map((other) => other.colour)),
    ...NOTHING_YET,
    ...fields,
  };
  return { ...document, things: [...document.things, thing], activeId: thing.id, made };
}

function changed(document, id, change) {
  const things = document.things.map((thing) => (thing.id === id ? change(thing) : thing));
  return things.some((thing, index) => thing !== document.things[index]) ? { ...document, things } : document;
}

/** A click: refines the active object, or starts one. The first click of an object cannot be negative. */
export function addPoint(document, point) {
  const active = activeThing(document);
  if (active?.base) return changed(document, active.id, (thing) => withPointOnBase(thing, point));
  if (active && point.label === 0 && !hasPrompt(active)) return document;
  if (active) return changed(document, active.id, (thing) => ({ ...thing, points: [...thing.points, point], visible: true }));
  return point.label === 1 ? withNewThing(document, { points: [point] }) : document;
}

/**
 * A click on an object with an imported mask. The mask stays; the model is asked for what lies under the clicks alone,
 * and that is added, or taken away if the first of the clicks was negative. A click of the other kind refines that
 * part; where the part cannot hold it (a negative click on the mask, a positive one outside), the result so far
 * becomes the imported mask and the click begins another part.
 */
function withPointOnBase(thing, point) {
  const isBegin = thing.points.length === 0;
  const isOnBase = contains(thing.base, point.x, point.y);
  const isElsewhere = thing.takes ? point.label === 1 && !isOnBase : point.label === 0 && isOnBase;
  if (!isBegin && (!isElsewhere || isWaiting(thing))) return { ...thing, points: [...thing.points, point], visible: true };
  const soFar = isBegin ? {} : { base: maskOf(thing), added: null, removed: null, ...(thing.found && { found: null }) };
  return { ...thing, ...soFar, points: [point], takes: point.label === 0, pick: null, answer: null, visible: true };
}

/** A box always starts a new object: users draw several boxes in a row. @param {string} [name] if it has one */
export const addBox = (document, box, name) => withNewThing(document, name ? { box, name } : { box });

/**
 * A brush stroke on the active object, or on a new one.
 * @param {Mask} stroke
 * @param {boolean} erases
 */
export function paint(document, stroke, erases) {
  const active = activeThing(document);
  const none = emptyMask(stroke.width, stroke.height);
  if (equal(stroke, none)) return document; // outside the image
  if (!active) return erases ? document : withNewThing(document, { added: stroke });
  const painted = {
    ...active,
    visible: true,
    added: erases ? active.added && subtract(active.added, stroke) : union(active.added ?? none, stroke),
    removed: erases ? union(active.removed ?? none, stroke) : active.removed && subtract(active.removed, stroke),
  };
  const isSettled = active.visible && !isWaiting(active);
  if (isSettled && equal(maskOf(painted) ?? none, maskOf(active) ?? none)) return document;
  return changed(document, active.id, () => painted);
}

/**
 * Adds objects from a file, all in one step; none of them is active.
 * @param {Array<{name?: string, classId: string|null, colour?: string, box?: number[], mask?: Mask}>} imported the
 *   first lies at the bottom; with a box the model makes the mask, with a mask it stays
 */
export function addImported(document, imported) {
  if (!imported.length) return document;
  const colours = document.things.map(({ colour }) => colour);
  const made = imported.map(({ name, classId, colour, box = null, mask = null }, index) => {
    const id = `object-${document.made + index + 1}`;
    const given = colour ?? nextColour(colours);
    colours.push(given);
    const fields = { id, name: name || givenName(id), colour: given, box, base: mask, classId, hasOwnColour: false };
    return { ...NOTHING_YET, ...fields };
  });
  return { ...document, things: [...document.things, ...made], activeId: null, made: document.made + made.length };
}

/** @param {number|null} pick */
export const choose = (document, id, pick) =>
  changed(document, id, (thing) => (thing.pick === pick ? thing : { ...thing, pick }));

/** Name, colour or visibility. */
export const describe = (document, id, fields) =>
  changed(document, id, (thing) =>
    Object.entries(fields).every(([name, value]) => thing[name] === value) ? thing : { ...thing, ...fields });

export function remove(document, id) {
  const things = document.things.filter((thing) => thing.id !== id);
  if (things.length === document.things.length) return document;
  return { ...document, things, activeId: document.activeId === id ? null : document.activeId };
}

/** @param {number} by  1: one nearer to the top */
export function move(document, id, by) {
  const from = document.things.findIndex((thing) => thing.id === id);
  const to = from + by;
  if (from < 0 || to < 0 || to >= document.things.length) return document;
  const things = [...document.things];
  things.splice(to, 0, ...things.splice(from, 1));
  return { ...document, things };
}

/** @param {string|null} id  null: the next click starts a new object */
export const activate = (document, id) => (document.activeId === id ? document : { ...document, activeId: id });

/**
 * The change that gives a response to every object with its prompt.
 * @param {string} key of {@link promptKey}
 * @returns {(document: Document) => Document} for many documents: objects that they share stay shared
 */
export function answering(key, candidates) {
  const answered = new Map();
  return (document) => {
    const things = document.things.map((thing) => {
      if (thing.answer?.key === key || !hasPrompt(thing) || promptKey(thing) !== key) return thing;
      if (!answered.has(thing)) answered.set(thing, { ...thing, answer: { key, candidates } });
      return answered.get(thing);
    });
    return things.some((thing, index) => thing !== document.things[index]) ? { ...document, things } : document;
  };
}

// -- prompts -----------------------------------------------------------------------------------------------------

/** Whether the object needs the model: a painted one does not. */
export const hasPrompt = (thing) => thing.points.length > 0 || thing.box !== null;

/** One point is ambiguous (a sleeve, a coat, a person?), so the model returns several masks. */
const wantsSeveral = (thing) =>
  thing.pick !== null || (thing.points.length === 1 && askedLabel(thing, thing.points[0]) === 1 && thing.box === null);

/** What is to be taken away is asked for as an object. */
const askedLabel = (thing, { label }) => (thing.takes ? 1 - label : label);

/** @returns {object} the prompt's fields of /v1/segment */
export function promptOf(thing) {
  const prompt = { multimask: wantsSeveral(thing), format: "rle" };
  if (thing.points.length) {
    prompt.points = thing.points.map(({ x, y }) => [x, y]);
    prompt.labels = thing.points.map((point) => askedLabel(thing, point));
  }
  if (thing.box) prompt.box = thing.box;
  return prompt;
}

const keys = new WeakMap();

/** @returns {string} equal for equal prompts */
export function promptKey(thing) {
  if (!keys.has(thing)) keys.set(thing, JSON.stringify(promptOf(thing)));
  return keys.get(thing);
}

/** Whether the newest prompt has no response yet. */
export const isWaiting = (thing) => hasPrompt(thing) && thing.answer?.key !== promptKey(thing);

/** Whether it has a prompt and nothing to show yet. */
export const isUnseen = (thing) => thing.visible && isWaiting(thing) && !maskOf(thing);

/** The object as it would be after a click here, for a preview. @returns {Thing|null} null if a click does nothing */
export function hovered(document, point) {
  const after = addPoint(document, point);
  return after === document ? null : activeThing(after);
}

// -- display -----------------------------------------------------------------------------------------------------

/** @returns {Candidate|null} the chosen one, or the one with the best score */
export function chosen(candidates, pick) {
  if (!candidates?.length) return null;
  if (pick !== null && candidates[pick]) return candidates[pick];
  return candidates.reduce((best, other) => (other.score > best.score ? other : best));
}

/** @param {Thing} thing @returns {number|null} of the model; null if it was painted or imported */
export const scoreOf = (thing) => chosen(thing.answer?.candidates, thing.pick)?.score ?? thing.found?.score ?? null;

/** @type {import("./mask_cleaning.js").Cleaning} one for all documents: what is shown is what every export has */
let cleaning = { holes: 0, islands: 0 };
let masks = new WeakMap();

/** @param {number} size of holes and islands in original pixels; smaller ones of the model's masks are cleaned away */
export function setCleaning(size) {
  if (size === cleaning.holes) return;
  cleaning = { holes: size, islands: size };
  masks = new WeakMap();
}

/** @returns {number} original pixels; 0 if nothing is cleaned, as with an object that was only painted */
export const cleaningOf = (thing) => (thing.answer ? cleaning.holes : 0);

/**
 * @returns {Mask|null} the model's mask, cleaned, with the painted and erased parts, which stay as they were drawn; null if
 *   there is none
 */
export function maskOf(thing) {
  if (!masks.has(thing)) {
    const model = chosen(thing.answer?.candidates, thing.pick)?.mask ?? null;
    let mask = withBase(thing, model && cleanMask(model, cleaning));
    if (thing.added) mask = mask ? union(mask, thing.added) : thing.added;
    if (mask && thing.removed) mask = subtract(mask, thing.removed);
    masks.set(thing, mask);
  }
  return masks.get(thing);
}

function withBase({ base, takes }, mask) {
  if (!base || !mask) return base ?? mask;
  return takes ? subtract(base, mask) : union(base, mask);
}
