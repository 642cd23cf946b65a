/**
 * Stores the work in IndexedDB, so that it survives a reload. A project is a list of images in an order; each image is a
 * record: its file, its history, and a summary. Nothing of a project is ever deleted but by the user. A tab has one
 * project, and a new tab opens the newest one that no other tab has.
 *
 * If storage is disabled, the records are kept in memory, and last as long as the page.
 *
 * @typedef {{file: Blob, view: object|null}} StoredPicture  view: how a scientific image became the file
 * @typedef {StoredPicture & {history: import("./core/history.js").History}} Work
 * @typedef {import("./project/items.js").Item} Item
 * @typedef {{project: string, name: string, count: number, saved: number}} ProjectSummary
 */
import { packed, unpacked } from "./core/history_packing.js";
import { Database, masksOf, newName } from "./storage/database.js";
import { ProjectLocks } from "./storage/project_locks.js";

const PROJECT = "triton-sam.project";
const WORK_STORES = ["index", "work", "masks"];
const RECORD_STORES = ["index", "pictures", "work", "masks", "thumbnails"];

/** @returns {number[]} of all masks of a packed history */
function usedIds(history) {
  const ids = [];
  unpacked(history, (id) => ids.push(id));
  return ids;
}

export class Store {
  /**
   * @param {object} tell
   * @param {() => void} tell.failed called once if nothing can be stored
   * @param {() => void} tell.full called if there is no room for what was to be stored
   * @param {() => void} tell.blocked called if a tab with an older page must be closed first
   */
  constructor(tell) {
    this._locks = new ProjectLocks();
    this._database = new Database(tell);
    /** Record -> (mask -> number), of the stored masks. */
    this._ids = new Map();
    this._lastId = 0;
    /** Record -> {item, work, thumbnail}, if there is no database. */
    this._memory = new Map();
    /** The settings, if there is no database. */
    this._settings = new Map();
    /** The project of this tab. */
    this.project = newName();
    /** Resolved when the project is known. */
    this.started = new Promise((resolve) => (this._start = resolve));
  }

  // -- settings ----------------------------------------------------------------------------------------------------

  /**
   * Keeps a value for the whole browser, such as the list of classes.
   * @param {string} name @param {unknown} value that IndexedDB can store
   */
  async saveSetting(name, value) {
    this._settings.set(name, value);
    if (!this._database.isOpen) await this.started;
    this._database.transact(["settings"], (stores) => stores.settings.put(value, name));
  }

  /** @param {string} name @returns {Promise<any>} undefined if there is none */
  async readSetting(name) {
    await this.started;
    return this._database.isOpen ? this._database.read("settings", (store) => store.get(name)) : this._settings.get(name);
  }

  // -- projects ----------------------------------------------------------------------------------------------------

  /** @returns {Promise<{items: Item[], current: string|null, isElsewhere: boolean}>} the project of this tab, and its images */
  async open() {
    try {
      await this._database.open();
      const { project, isElsewhere } = await this._ownProject();
      this._become(project);
      return { ...(await this._itemsOf(project)), isElsewhere };
    } catch {
      this._database.fail();
      return { items: [], current: null, isElsewhere: false };
    } finally {
      this._start();
    }
  }

  /** Starts an empty project; the one before is kept. @returns {Promise<void>} */
  async begin() {
    const before = this.project;
    const project = newName();
    await this._locks.claim(project);
    this._become(project);
    this._locks.release(before);
  }

  /** @param {string} project @returns {Promise<{items: Item[], current: string|null}|null>} null if another tab has it */
  async switchTo(project) {
    if (!(await this._locks.claim(project))) return null;
    const before = this.project;
    this._become(project);
    this._locks.release(before);
    return this._itemsOf(project);
  }

  /** @returns {Promise<ProjectSummary[]>} the other projects of this browser, the newest first */
  async earlier() {
    const all = (await this._projects()).filter(({ project, order }) => project !== this.project && order.length);
    const entries = await Promise.all(all.map(({ order, current }) => this._database.read("index", (store) => store.get(current ?? order[0]))));
    return all.map(({ project, order, saved }, index) => ({
      project, saved, count: order.length, name: entries[index]?.name ?? "",
    }));
  }

  /** @param {string[]} order of the records @param {string|null} current */
  saveOrder(order, current) {
    const { project } = this;
    this._database.transact(["projects"], ({ projects }) =>
      order.length ? projects.put({ order, current, saved: Date.now() }, project) : projects.delete(project));
  }

  _become(project) {
    this.project = project;
    try {
      sessionStorage.setItem(PROJECT, project);
    } catch {
      // A reload will not find the project, but a new tab may.
    }
  }

  async _ownProject() {
    const previous = sessionStorage.getItem(PROJECT);
    if (previous && (await this._locks.claim(previous, { isPatient: true }))) return { project: previous, isElsewhere: false };
    let isElsewhere = Boolean(previous);
    for (const { project } of previous ? [] : await this._projects()) {
      if (await this._locks.claim(project)) return { project, isElsewhere: false };
      isElsewhere = true;
    }
    const project = newName();
    await this._locks.claim(project);
    return { project, isElsewhere };
  }

  async _projects() {
    const [names, values] = await Promise.all([
      this._database.read("projects", (store) => store.getAllKeys()),
      this._database.read("projects", (store) => store.getAll()),
    ]);
    const all = (values ?? []).map((value, index) => ({ project: names[index], ...value }));
    return all.sort((a, b) => b.saved - a.saved);
  }

  async _itemsOf(project) {
    const [known, records, entries] = await Promise.all([
      this._database.read("projects", (store) => store.get(project)),
      this._database.read("index", (store) => store.getAllKeys()),
      this._database.read("index", (store) => store.getAll()),
    ]);
    const order = known?.order ?? [];
    const own = new Map();
    entries?.forEach((entry, index) => {
      if (entry.project === project) own.set(records[index], { ...entry, record: records[index] });
    });
    const items = order.filter((record) => own.has(record)).map((record) => own.get(record));
    // What the user had removed from the list could be brought back until the page was closed.
    const removed = [...own.keys()].filter((record) => !order.includes(record));
    if (removed.length) this.remove(removed);
    return { items, current: known?.current ?? null };
  }

  // -- records -----------------------------------------------------------------------------------------------------

  /** @param {string} record @returns {Promise<Work|null>} null also for an incomplete record */
  async read(record) {
    if (!this._database.isOpen) return this._memory.get(record)?.work ?? null;
    const range = masksOf(record);
    const [picture, work, keys, masks] = await Promise.all([
      this.readPicture(record),
      this._database.read("work", (store) => store.get(record)),
      this._database.read("masks", (store) => store.getAllKeys(range)),
      this._database.read("masks", (store) => store.getAll(range)),
    ]);
    if (!picture || !work) return null;
    const byId = new Map(keys.map(([, id], index) => [id, masks[index]]));
    const history = unpacked(work.history, (id) => byId.get(id) ?? null);
    if (!usedIds(work.history).every((id) => byId.has(id))) return null;
    this._ids.set(record, new WeakMap(keys.map(([, id], index) => [masks[index], id])));
    this._lastId = Math.max(this._lastId, keys.at(-1)?.[1] ?? 0);
    return { ...picture, history };
  }

  /** @param {string} record @returns {Promise<StoredPicture|null>} */
  async readPicture(record) {
    const stored = await this._database.read("pictures", (store) => store.get(record));
    if (stored) return stored instanceof Blob ? { file: stored, view: null } : stored;
    const work = this._memory.get(record)?.work;
    return work ? { file: work.file, view: work.view } : null;
  }

  /** @param {string} record @returns {Promise<Blob|null>} */
  async readThumbnail(record) {
    return (await this._database.read("thumbnails", (store) => store.get(record))) ?? this._memory.get(record)?.thumbnail ?? null;
  }

  /** @param {string} record @param {Blob} thumbnail */
  saveThumbnail(record, thumbnail) {
    const kept = this._memory.get(record);
    if (kept) kept.thumbnail = thumbnail;
    return this._database.transact(["thumbnails"], ({ thumbnails }) => thumbnails.put(thumbnail, record));
  }

  /** @param {Item} item with a new image @param {Work} work @returns {Promise<boolean>} whether it is stored; false if there is no room */
  savePicture(item, work) {
    const { record } = item;
    this._remember(item, work);
    this._ids.set(record, new WeakMap());
    const { file, view } = work;
    const isStored = this._database.transact(RECORD_STORES, (stores) => {
      stores.masks.delete(masksOf(record));
      stores.thumbnails.delete(record);
      stores.pictures.put(view ? { file, view } : file, record);
      this._putWork(stores, item, work);
    });
    return this._checked(isStored, record);
  }

  /** @param {Item} item with other pixels and the same work @param {StoredPicture} picture @returns {Promise<boolean>} */
  changePicture(item, { file, view }) {
    const kept = this._memory.get(item.record);
    if (kept) Object.assign(kept, { work: { ...kept.work, file, view }, thumbnail: undefined });
    return this._database.transact(["index", "pictures", "thumbnails"], ({ index, pictures, thumbnails }) => {
      thumbnails.delete(item.record);
      pictures.put(view ? { file, view } : file, item.record);
      index.put(this._entry(item), item.record);
    });
  }

  /** @param {Item} item @param {Work} work whose image is already stored @returns {Promise<boolean>} */
  saveWork(item, work) {
    this._remember(item, work);
    const isStored = this._database.transact(WORK_STORES, (stores) => this._putWork(stores, item, work));
    return this._checked(isStored, item.record);
  }

  /** @param {Item[]} items whose work is unchanged */
  saveItems(items) {
    this._database.transact(["index"], ({ index }) => {
      for (const item of items) index.put(this._entry(item), item.record);
    });
  }

  /** @param {string} project of {@link earlier}, with all of its images @returns {Promise<boolean>} false if another tab has it */
  async removeProject(project) {
    if (!(await this._locks.claim(project))) return false;
    this._database.transact(["projects"], ({ projects }) => projects.delete(project));
    await this._itemsOf(project); // which deletes what is in no project
    this._locks.release(project);
    return true;
  }

  /** @param {string[]} records deleted for good */
  remove(records) {
    for (const record of records) this._memory.delete(record);
    this._database.transact(RECORD_STORES, ({ masks, ...others }) => {
      for (const record of records) {
        for (const store of Object.values(others)) store.delete(record);
        masks.delete(masksOf(record));
      }
    });
  }

  /** After a failure the masks of the record must be written again. */
  async _checked(isStored, record) {
    if (await isStored) return true;
    this._ids.delete(record);
    return false;
  }

  _remember(item, work) {
    if (this._database.isOpen) return;
    this._memory.set(item.record, { ...this._memory.get(item.record), item, work });
  }

  _entry({ record: _, ...item }) {
    return { ...item, project: this.project, saved: Date.now() };
  }

  _putWork(stores, item, { history }) {
    const { record } = item;
    if (!this._ids.has(record)) this._ids.set(record, new WeakMap());
    const ids = this._ids.get(record);
    const idOf = (mask) => {
      if (!ids.has(mask)) {
        ids.set(mask, ++this._lastId);
        stores.masks.put(mask, [record, this._lastId]);
      }
      return ids.get(mask);
    };
    stores.work.put({ history: packed(history, idOf) }, record);
    stores.index.put(this._entry(item), record);
  }
}
