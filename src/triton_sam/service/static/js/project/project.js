/**
 * The project of this tab: its images, which of them is open, and that all work is stored.
 *
 * Events: "items" when an image was added, removed, opened, or has another status; "redrawing" and "redrawn"
 * (detail: its record) before and after an image gets another picture.
 *
 * @typedef {import("./items.js").Item} Item
 * @typedef {import("../core/document.js").Document} Document
 */
import * as documents from "../core/document.js";
import { listed } from "../core/found.js";
import * as histories from "../core/history.js";
import { Problem, sentence } from "../net/problems.js";
import { newName } from "../storage/database.js";
import { Store } from "../work_storage.js";
import { Items, hasWork, newItem, pageOf } from "./items.js";

const SAVE_PAUSE = 150;
const NO_STORAGE = "This browser stores no data for the page: export your work before you leave.";
const FULL =
  "The browser's storage is full: what you do now is not kept when you leave. Export your work, then remove images from the list.";
const BLOCKED = "An older version of this page is open in another tab: close that tab, and your work is shown here.";
const ELSEWHERE = "Your list of images is open in another tab. This tab has a list of its own.";

export class Project extends EventTarget {
  /**
   * @param {import("../app.js").App} app
   * @param {import("../picture_opening.js").PictureOpening} opening
   */
  constructor(app, opening) {
    super();
    this._app = app;
    this.opening = opening;
    this.store = new Store({
      failed: () => app.notice("storage", NO_STORAGE),
      full: () => this._full(),
      blocked: () => app.notice("blocked", BLOCKED),
    });
    this.list = new Items();
    /** Resolved when the images are known. */
    this.started = new Promise((resolve) => (this._start = resolve));
    /** The record that is being opened. */
    this._wanted = null;
    this._loading = { record: null, done: Promise.resolve() };
    this._editing = Promise.resolve();
    this._saved = null;
    this._trash = [];
    addEventListener("pagehide", () => this.saveNow());
    document.addEventListener("visibilitychange", () => document.hidden && this.saveNow());
    app.images.addEventListener("state", () => this._imageState());
    app.addEventListener("document", () => this._save());
  }

  /** @returns {Item|null} the open image */
  get current() {
    return this.list.get(this.list.current);
  }

  /** Shows the work of the last session. @returns {Promise<boolean>} whether there was some */
  async restore() {
    const { items, current, isElsewhere } = await this.store.open();
    this.list.reset(items, current);
    this._start();
    this._emit();
    this._app.notice("blocked", "");
    if (isElsewhere) this._app.notice("storage", ELSEWHERE);
    const first = this.current ?? this.list.all[0];
    return this.opening.turn === 0 && first ? this.openRecord(first.record) : false;
  }

  // -- opening -------------------------------------------------------------------------------------------------------

  /**
   * Adds an image to the list and shows it.
   * @param {Blob|Promise<Blob>} file
   * @param {string} name
   * @param {{view?: object|null, isSample?: boolean}} [about]
   * @returns {Promise<boolean>} false if another image was opened meanwhile
   * @throws {Problem} if it cannot be shown
   */
  async open(file, name, { view = null, isSample = false } = {}) {
    await this.started;
    this._wanted = null;
    const shown = await this.opening.open(() => file);
    if (!shown) return false;
    const before = this.current;
    const { width, height } = shown.bitmap;
    const item = newItem({ record: newName(), name, width, height, isSample, ...pageOf(view) });
    this.saveNow();
    this.list.add(item);
    // Samples are at hand again at any time: those that nobody worked on do not fill the list.
    if (before?.isSample && this.current.status === "untouched") this._forget([before.record]);
    this._switch(item, shown, { view, history: histories.newHistory(documents.newDocument()) });
    this.store.savePicture(item, { file: shown.file, view, history: this._app.history });
    return true;
  }

  /** @param {string} record of the list @returns {Promise<boolean>} whether it is shown */
  async openRecord(record) {
    if (record === this.list.current && this._app.picture) {
      if (this._wanted) this.opening.cancel(); // back to what is still open
      this._wanted = null;
      return true;
    }
    this._wanted = record;
    for (let edits = null; edits !== this._editing; ) {
      edits = this._editing;
      await edits;
    }
    if (this._wanted !== record || !this.list.get(record)) return false;
    const done = this._load(record);
    this._loading = { record, done };
    return done.finally(() => this._loading.done === done && (this._loading = { record: null, done }));
  }

  async _load(record) {
    let work = null;
    try {
      const shown = await this.opening.open(async () => {
        work = await this.store.read(record);
        if (!work) throw new Problem("refused", `${this.list.get(record)?.name} cannot be read from the browser's storage`);
        return work.file;
      });
      if (!shown) return false;
      const { width, height } = shown.bitmap;
      if (!this.list.get(record)) {
        shown.bitmap.close();
        return false;
      }
      this.saveNow();
      this.list.change(record, { width, height });
      this._switch(this.list.get(record), shown, work);
      return true;
    } catch (error) {
      this._app.notice("picture", sentence(error));
      return false;
    } finally {
      if (this._wanted === record) this._wanted = null;
    }
  }

  /**
   * Gives an image another picture of the same size, such as another contrast; its work stays, and it is encoded anew.
   * @param {string} record open or not
   * @param {{file: Blob, view: object, bitmap: ImageBitmap|null}} picture bitmap: needed for the open image
   */
  async changePicture(record, { file, view, bitmap }) {
    this.dispatchEvent(new CustomEvent("redrawing", { detail: record }));
    const item = this.list.change(record, { keys: {} });
    const isOpen = record === this.list.current && this._app.picture !== null;
    if (isOpen) this._app.redraw({ file, view, bitmap });
    else bitmap?.close();
    if (!item) return;
    await this.store.changePicture(item, { file, view });
    this.dispatchEvent(new CustomEvent("redrawn", { detail: record }));
  }

  _switch(item, { file, bitmap }, { view, history }) {
    this.list.current = item.record;
    this._saved = history;
    this._app.show({ item, file, bitmap, view, history });
    this.store.saveOrder(this.list.order, this.list.current);
    this._emit();
  }

  /** @param {number} by 1: the next image, -1: the one before */
  step(by) {
    const next = this.list.neighbour(by, this._wanted ?? this.list.current);
    if (next) return this.openRecord(next.record);
    if (this.list.all.length > 1) this._app.announce(by > 0 ? "This is the last image." : "This is the first image.");
    return Promise.resolve(false);
  }

  // -- the list ------------------------------------------------------------------------------------------------------

  /** @param {Item} item at the end of the list @param {{file: Blob, view: object|null}} picture @returns {Promise<boolean>} false: no room */
  async append(item, picture, history = histories.newHistory(documents.newDocument())) {
    if (!(await this.store.savePicture(item, { ...picture, history }))) return false;
    this.list.add(item);
    this.store.saveOrder(this.list.order, this.list.current);
    this._emit();
    return true;
  }

  /** @param {boolean} isDone @param {string|null} [record] */
  setDone(isDone, record = this.list.current) {
    const item = this.list.change(record, { isDone });
    if (!item) return;
    this.store.saveItems([item]);
    this._app.announce(`${item.name}: ${item.status}.`);
    this._emit();
  }

  /** Takes images out of the list; until the next removal this can be undone. @param {string[]} records */
  async remove(records) {
    this.saveNow();
    const place = Math.min(...records.map((record) => this.list.placeOf(record)));
    const isOpen = records.includes(this.list.current);
    this._emptyTrash();
    this._trash = this.list.remove(records);
    this.store.saveOrder(this.list.order, this.list.current);
    const what = records.length === 1 ? `${this._trash[0]?.item.name} was` : `${records.length} images were`;
    this._app.notice("removed", `${what} removed from the list.`, { label: "Undo", run: () => this._restoreRemoved() });
    this._emit();
    const next = this.list.all[Math.min(place, this.list.all.length - 1)];
    if (isOpen && next) await this.openRecord(next.record);
    else if (isOpen) this._close();
  }

  _restoreRemoved() {
    this.list.restore(this._trash);
    const first = this._trash[0];
    this._trash = [];
    this.store.saveOrder(this.list.order, this.list.current);
    this._emit();
    if (!this.current && first) this.openRecord(first.item.record);
  }

  _emptyTrash() {
    this.store.remove(this._trash.map(({ item }) => item.record));
    this._trash = [];
    this._app.notice("removed", "");
  }

  _forget(records) {
    this.list.remove(records);
    this.store.remove(records);
  }

  _close() {
    this._saved = null;
    this._app.close();
  }

  // -- projects ------------------------------------------------------------------------------------------------------

  /** Starts an empty list; the one before is kept. */
  async begin() {
    this.saveNow();
    this._emptyTrash();
    await this.store.begin();
    this.list.reset([], null);
    this._close();
    this._emit();
  }

  /** @param {string} project of the store's earlier ones */
  async switchTo(project) {
    this.saveNow();
    this._emptyTrash();
    const found = await this.store.switchTo(project);
    if (!found) {
      this._app.notice("kept", "This list is open in another tab.");
      return;
    }
    this._close();
    this.list.reset(found.items, found.current);
    this._emit();
    const first = this.current ?? this.list.all[0];
    if (first) await this.openRecord(first.record);
  }

  // -- work ----------------------------------------------------------------------------------------------------------

  /** @param {string} record @returns {Promise<import("../work_storage.js").Work|null>} of any image of the list */
  read(record) {
    if (record !== this.list.current || !this._app.picture) return this.store.read(record);
    return Promise.resolve(this._work());
  }

  /**
   * Changes the document of any image of the list; an undo step.
   * @param {string} record @param {(document: Document) => Document} change
   * @returns {Promise<boolean>} false if the image is not there, or cannot be read
   */
  editDocument(record, change) {
    const turn = this._editing.then(() => this._edit(record, change));
    this._editing = turn.catch(() => {});
    return turn;
  }

  async _edit(record, change) {
    if (this._loading.record === record) await this._loading.done;
    const item = this.list.get(record);
    if (record === this.list.current && this._app.picture) {
      this._app.change(change);
      return true;
    }
    const work = item && (await this.store.read(record));
    if (!work) return false;
    const history = histories.step(work.history, change(work.history.present));
    if (history === work.history) return true;
    const fields = { hasWork: hasWork(history), objectCount: listed(history.present).length };
    await this.store.saveWork(this.list.change(record, fields) ?? item, { ...work, history });
    this._emit();
    return true;
  }

  /** An image key that was made ahead. @param {string} record @param {string} model @param {string} key */
  keepKey(record, model, key) {
    const item = this.list.get(record);
    if (!item) return;
    this.store.saveItems([this.list.change(record, { keys: { ...item.keys, [model]: key } })]);
  }

  saveNow() {
    clearTimeout(this._saveTimer);
    this._saveTimer = undefined;
    const { picture, history, images } = this._app;
    if (!picture || !this.current || this._saved === history) return;
    this._saved = history;
    const fields = { hasWork: hasWork(history), objectCount: listed(history.present).length, keys: { ...images.known } };
    this.list.change(this.list.current, fields);
    this.store.saveWork(this.current, this._work());
    this._emit();
  }

  _save() {
    this._saveTimer ??= setTimeout(() => this.saveNow(), SAVE_PAUSE);
  }

  _work() {
    const { picture, history } = this._app;
    return { file: picture.file, view: picture.view, history };
  }

  _imageState() {
    if (this._app.images.state.phase !== "ready") return;
    this._saved = null; // the image key is saved too
    this._save();
  }

  _full() {
    this._saved = null; // tried again with the next change
    this._app.notice("storage", FULL);
  }

  _emit() {
    this.dispatchEvent(new Event("items"));
  }
}
