/**
 * The images of a project in their order. Items are immutable: a changed one is a new one, and so is the array.
 *
 * @typedef {object} Item
 * @property {string} record  names its stored data
 * @property {string} name  of the file; with / if it came from a folder in a folder
 * @property {"untouched"|"begun"|"done"} status
 * @property {number} width  0 if unknown: images of older versions, until they are opened
 * @property {number} height
 * @property {number} objectCount
 * @property {boolean} hasWork  whether there is something to lose
 * @property {boolean} isDone  the user says so
 * @property {boolean} [isSample]  from the server's samples
 * @property {string} [stack]  the same for all pages of a file with several
 * @property {number} [page]  of a stack, from 1
 * @property {Record<string, string>} keys  model -> image key on the server
 */
import { canRedo, canUndo } from "../core/history.js";

/** @returns {boolean} whether a history has work worth keeping */
export const hasWork = (history) => history.present.things.length > 0 || canUndo(history) || canRedo(history);

/** @param {any} view of a picture @returns {Partial<Item>} which page of which stack it is */
export const pageOf = (view) => (view?.stack ? { stack: view.stack, page: view.page } : {});

/** @param {Partial<Item>} fields @returns {Item} */
export function newItem(fields) {
  const whole = { width: 0, height: 0, objectCount: 0, hasWork: false, isDone: false, keys: {}, ...fields };
  return { ...whole, status: whole.isDone ? "done" : whole.hasWork ? "begun" : "untouched" };
}

export class Items {
  constructor() {
    /** @type {Item[]} */
    this.all = [];
    /** @type {string|null} the record of the open image */
    this.current = null;
    this._places = new Map();
  }

  /** @param {Partial<Item>[]} items @param {string|null} current */
  reset(items, current) {
    this._become(items.map(newItem));
    this.current = this._places.has(current) ? current : null;
  }

  /** @returns {number} -1 if it is not in the list */
  placeOf(record) {
    return this._places.get(record) ?? -1;
  }

  /** @param {string|null} record @returns {Item|null} */
  get(record) {
    return this.all[this.placeOf(record)] ?? null;
  }

  /** @param {Item} item at the end of the list */
  add(item) {
    this._places.set(item.record, this.all.length);
    this.all = [...this.all, item];
  }

  /** @param {string} record @param {Partial<Item>} fields @returns {Item|null} the changed item; null if nothing has changed */
  change(record, fields) {
    const before = this.get(record);
    if (!before || Object.entries(fields).every(([name, value]) => before[name] === value)) return null;
    const item = newItem({ ...before, ...fields });
    this.all = this.all.with(this.placeOf(record), item);
    return item;
  }

  /** @param {string[]} records @returns {{item: Item, place: number}[]} the removed ones, for {@link restore} */
  remove(records) {
    const isGone = new Set(records);
    const removed = this.all.map((item, place) => ({ item, place })).filter(({ item }) => isGone.has(item.record));
    this._become(this.all.filter(({ record }) => !isGone.has(record)));
    if (isGone.has(this.current)) this.current = null;
    return removed;
  }

  /** @param {{item: Item, place: number}[]} removed in the order of their places */
  restore(removed) {
    const all = [...this.all];
    for (const { item, place } of removed) if (!this._places.has(item.record)) all.splice(place, 0, item);
    this._become(all);
  }

  /** @param {number} by 1: the next @param {string|null} [from] @returns {Item|null} null at the end of the list */
  neighbour(by, from = this.current) {
    const place = this.placeOf(from);
    return place < 0 ? null : (this.all[place + by] ?? null);
  }

  get order() {
    return this.all.map(({ record }) => record);
  }

  _become(all) {
    this.all = all;
    this._places = new Map(all.map(({ record }, place) => [record, place]));
  }
}
