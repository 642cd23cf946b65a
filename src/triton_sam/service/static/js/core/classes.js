/**
 * The classes of a project: what an object can be. Every function takes classes and returns new ones (or the same, if
 * nothing changes).
 *
 * A class has a number that it keeps for life, whatever its place in the list: the id of its COCO category and its
 * value in a label image of classes. The digit keys go by the place in the list.
 *
 * @typedef {{id: string, name: string, colour: string}} Class  id: "class-" and its number; colour: "#rrggbb"
 * @typedef {{list: Class[], activeId: string|null, made: number}} Classes
 *   activeId: the class that new objects get; made: the highest number that was ever given
 */
import { nextColour } from "./palette.js";

export const LONGEST_CLASS_NAME = 80;
/** A number from elsewhere is kept up to here, so that many more fit into the 16 bits of a label image. */
const MOST_WISHED = 9999;
const COLOUR = /^#[0-9a-f]{6}$/i;

/** @returns {Classes} */
export const newClasses = () => ({ list: [], activeId: null, made: 0 });

/** @param {Class} one @returns {number} from 1 on */
export const numberOf = ({ id }) => Number(id.slice("class-".length));

/** @param {Classes} classes @param {string|null|undefined} id @returns {Class|null} null also for a deleted class */
export const classOf = (classes, id) => classes.list.find((one) => one.id === id) ?? null;

/** @param {Classes} classes @param {string} name @returns {Class|null} */
export const classNamed = (classes, name) => classes.list.find((one) => one.name === cleanName(name)) ?? null;

/** One line without spaces around it. */
const cleanName = (name) => String(name ?? "").replace(/\s+/gu, " ").trim().slice(0, LONGEST_CLASS_NAME).trim();

/**
 * @param {Classes} classes
 * @param {string} name an empty or known one adds nothing
 * @param {{colour?: string, number?: number}} [wishes] a number that is taken or unfit is replaced by the next one
 * @returns {Classes}
 */
export const addClass = (classes, name, wishes = {}) => withClass(classes, name, wishes, classes.made);

/** @param {number} made numbers up to this one may belong to deleted classes */
function withClass(classes, name, { colour, number }, made) {
  const clean = cleanName(name);
  if (!clean || classNamed(classes, clean)) return classes;
  const isUsed = classOf(classes, `class-${number}`) !== null;
  const given = Number.isInteger(number) && number > made && number <= MOST_WISHED && !isUsed ? number : classes.made + 1;
  const used = classes.list.map((one) => one.colour);
  const added = {
    id: `class-${given}`,
    name: clean,
    colour: COLOUR.test(colour ?? "") ? colour.toLowerCase() : nextColour(used),
  };
  return { ...classes, list: [...classes.list, added], made: Math.max(classes.made, given) };
}

/**
 * @param {Classes} classes @param {string} id
 * @param {{name?: string, colour?: string}} fields a name that is empty or another class's changes nothing
 */
export function describeClass(classes, id, { name, colour }) {
  const clean = cleanName(name);
  const isTaken = clean && classes.list.some((one) => one.name === clean && one.id !== id);
  const list = classes.list.map((one) => {
    if (one.id !== id) return one;
    const next = {
      ...one,
      name: clean && !isTaken ? clean : one.name,
      colour: COLOUR.test(colour ?? "") ? colour.toLowerCase() : one.colour,
    };
    return next.name === one.name && next.colour === one.colour ? one : next;
  });
  return list.some((one, place) => one !== classes.list[place]) ? { ...classes, list } : classes;
}

/** @param {number} by -1: one place up, so that its digit key is one lower */
export function moveClass(classes, id, by) {
  const from = classes.list.findIndex((one) => one.id === id);
  const to = from + by;
  if (from < 0 || to < 0 || to >= classes.list.length) return classes;
  const list = [...classes.list];
  list.splice(to, 0, ...list.splice(from, 1));
  return { ...classes, list };
}

/**
 * Its objects keep the id of a class that is not there, which is no class. So they have it again when the deletion is
 * undone, on every image; the number is never given to another class.
 */
export function deleteClass(classes, id) {
  const list = classes.list.filter((one) => one.id !== id);
  if (list.length === classes.list.length) return classes;
  return { ...classes, list, activeId: classes.activeId === id ? null : classes.activeId };
}

/** Takes back {@link deleteClass}. @param {Class} one @param {number} place in the list, from 0 on */
export function restoreClass(classes, one, place) {
  if (classOf(classes, one.id) || classNamed(classes, one.name)) return classes;
  const list = [...classes.list];
  list.splice(place, 0, one);
  return { ...classes, list };
}

/** @param {string|null} id the class of the next objects; null or an unknown one: none */
export function activateClass(classes, id) {
  const activeId = classOf(classes, id)?.id ?? null;
  return activeId === classes.activeId ? classes : { ...classes, activeId };
}

/**
 * Adds classes from elsewhere: one of a known name is that class, and keeps its colour and number.
 * @param {Classes} classes
 * @param {Array<{name: string, colour?: string, number?: number}>} others
 * @returns {{classes: Classes, ids: Array<string|null>}} the id for each of the others; null for one without a name
 */
export function mergeClasses(classes, others) {
  let merged = classes;
  const names = others.map(({ name }) => cleanName(name));
  others.forEach((other, index) => (merged = withClass(merged, names[index], other, classes.made)));
  return { classes: merged, ids: names.map((name) => classNamed(merged, name)?.id ?? null) };
}

/** @param {any} stored of an earlier session or a project file @returns {Classes} only what is usable of it */
export function classesFrom(stored) {
  const usable = (one) => /^class-[1-9]\d{0,4}$/.test(one?.id) && cleanName(one.name) && COLOUR.test(one.colour ?? "");
  const list = [];
  for (const one of Array.isArray(stored?.list) ? stored.list.filter(usable) : []) {
    const isNew = !list.some(({ id, name }) => id === one.id || name === cleanName(one.name));
    if (isNew) list.push({ id: one.id, name: cleanName(one.name), colour: one.colour.toLowerCase() });
  }
  const made = Math.max(0, Number.isInteger(stored?.made) ? stored.made : 0, ...list.map(numberOf));
  return activateClass({ list, activeId: null, made }, stored?.activeId ?? null);
}

// -- as a file -----------------------------------------------------------------------------------------------------

/** @param {Classes} classes @returns {Array<{id: number, name: string, color: string}>} as COCO's categories, with colours */
export const classList = (classes) => classes.list.map((one) => ({ id: numberOf(one), name: one.name, color: one.colour }));

/**
 * Reads a list of classes: JSON (names, or objects with a name, or COCO's categories), or text with a name per line.
 * @param {string} text
 * @returns {Array<{name: string, colour?: string, number?: number}>} for {@link mergeClasses}
 * @throws {Error} one sentence, if there is none
 */
export function readClassList(text) {
  const trimmed = text.replace(/^\ufeff/, "").trim();
  const isJson = trimmed.startsWith("[") || trimmed.startsWith("{");
  const found = isJson ? listOfJson(trimmed) : trimmed.split(/\r\n|\n|\r/u).map((name) => ({ name }));
  const named = found.map((row) => ({ ...row, name: cleanName(row.name) })).filter(({ name }) => name);
  if (!named.length) throw new Error("There are no classes in this file: write one name per line.");
  return named;
}

function listOfJson(text) {
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    throw new Error("This list of classes is not valid JSON: write one name per line instead.");
  }
  const rows = Array.isArray(document) ? document : document.categories ?? document.classes ?? document.list;
  return Array.isArray(rows) ? rows.map(rowOf) : [];
}

/** @param {any} row a name, or an object of a class or a COCO category */
export function rowOf(row) {
  if (typeof row === "string" || typeof row === "number") return { name: String(row) };
  return { name: row?.name, colour: colourFrom(row?.color ?? row?.colour), number: row?.id };
}

/**
 * @param {any} value "#rrggbb", [r, g, b] from 0 to 255, or QuPath's packed number
 * @returns {string|undefined} "#rrggbb"
 */
export function colourFrom(value) {
  if (typeof value === "string") return COLOUR.test(value) ? value.toLowerCase() : undefined;
  const parts = Number.isInteger(value) ? [16, 8, 0].map((bits) => (value >> bits) & 255) : value;
  const isRgb = Array.isArray(parts) && parts.length >= 3 && parts.slice(0, 3).every((part) => part >= 0 && part <= 255);
  return isRgb ? `#${parts.slice(0, 3).map((part) => Math.round(part).toString(16).padStart(2, "0")).join("")}` : undefined;
}
