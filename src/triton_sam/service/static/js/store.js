/**
 * Work that outlives a reload, in the browser's own database: one record an image. Every tab has a record of its own, so
 * that two tabs do not overwrite each other; a new tab takes up the newest record that no open tab holds.
 *
 * @typedef {{name: string, file: Blob}} SavedPicture
 * @typedef {{history: import("./core/history.js").History, keys: Record<string, string>}} SavedWork
 * @typedef {SavedPicture & SavedWork & {record: string, ids: Map<object, number>}} Saved  ids: of its masks
 */
import { packed, unpacked } from "./core/saved_work.js";

const DATABASE = "triton-sam";
const RECORD = "triton-sam.record";
const STORES = ["pictures", "work", "masks"];
/** Records that no tab holds; each may have an image of many megabytes. */
const KEPT_RECORDS = 4;
/** Without locks nobody knows which records are held, so more of them are kept. */
const KEPT_WITHOUT_LOCKS = 12;
const CLAIM_PATIENCE = 500;

const answered = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

function openDatabase() {
  const request = indexedDB.open(DATABASE, 2);
  request.onupgradeneeded = () => {
    const { objectStoreNames } = request.result;
    for (const store of STORES) if (!objectStoreNames.contains(store)) request.result.createObjectStore(store);
  };
  return answered(request);
}

const masksOf = (record) => IDBKeyRange.bound([record, 0], [record, Infinity]);

const newRecord = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;

/** Storage may be forbidden or full: the page then works as before, only without a memory. */
export class Store {
  /** @param {() => void} onFailure called once when nothing can be kept */
  constructor(onFailure) {
    this._onFailure = onFailure;
    this._database = null;
    this._hasFailed = false;
    this._ids = new WeakMap();
    this._lastId = 0;
    this._held = new Map();
    /** Whose work this is. */
    this.record = "";
    // Writes wait until it is known.
    this._writing = new Promise((resolve) => (this._start = resolve));
  }

  /** @returns {Promise<Saved|null>} what this tab had before, or what a closed one left; for {@link adopt} */
  async open() {
    try {
      this._database = await openDatabase();
      this._become(await this._ownRecord());
      return await this._read(this.record);
    } catch {
      this._fail();
      return null;
    } finally {
      this._start();
    }
  }

  /** Leaves the record as it is and begins another. */
  begin() {
    const record = newRecord();
    this._claim(record);
    this._become(record);
    this._prune().catch(() => {});
  }

  /** @param {string} record that was left @returns {Promise<Saved|null>} for {@link adopt} */
  async read(record) {
    await this._writing;
    try {
      if (this._database && (await this._claim(record))) return await this._read(record);
    } catch {
      this._fail();
    }
    return null;
  }

  /** From now on this is what is written. @param {Saved} saved */
  adopt({ record, ids }) {
    this._ids = new WeakMap(ids);
    this._lastId = Math.max(0, ...ids.values());
    this._become(record);
  }

  /** @param {SavedPicture} picture @param {SavedWork} work */
  savePicture(picture, work) {
    const { record } = this;
    return this._write((transaction) => {
      this._ids = new WeakMap();
      transaction.objectStore("masks").delete(masksOf(record));
      transaction.objectStore("pictures").put({ ...picture, saved: Date.now() }, record);
      this._putWork(transaction, record, work);
    });
  }

  /** @param {SavedWork} work */
  saveWork(work) {
    const { record } = this;
    return this._write((transaction) => this._putWork(transaction, record, work));
  }

  _putWork(transaction, record, work) {
    const idOf = (mask) => {
      if (!this._ids.has(mask)) {
        this._ids.set(mask, ++this._lastId);
        transaction.objectStore("masks").put(mask, [record, this._lastId]);
      }
      return this._ids.get(mask);
    };
    transaction.objectStore("work").put({ ...work, history: packed(work.history, idOf) }, record);
  }

  async _read(record) {
    const read = (store, action) => answered(action(this._database.transaction(store).objectStore(store)));
    const range = masksOf(record);
    const [picture, work, keys, masks] = await Promise.all([
      read("pictures", (store) => store.get(record)),
      read("work", (store) => store.get(record)),
      read("masks", (store) => store.getAllKeys(range)),
      read("masks", (store) => store.getAll(range)),
    ]);
    if (!picture || !work) return null;
    const byId = new Map(keys.map(([, id], index) => [id, masks[index]]));
    const ids = new Map(keys.map(([, id], index) => [masks[index], id]));
    return { ...picture, ...work, history: unpacked(work.history, (id) => byId.get(id)), record, ids };
  }

  // -- whose record it is --------------------------------------------------------------------------------------------

  async _ownRecord() {
    const previous = sessionStorage.getItem(RECORD);
    if (previous && (await this._claim(previous))) return previous;
    const orphan = previous ? null : await this._prune();
    if (orphan && (await this._claim(orphan))) return orphan;
    const record = newRecord();
    await this._claim(record);
    return record;
  }

  _become(record) {
    this.record = record;
    try {
      sessionStorage.setItem(RECORD, record);
    } catch {
      // A reload will not find it, and a new tab may.
    }
    for (const [other, release] of this._held) {
      if (other === record) continue;
      release();
      this._held.delete(other);
    }
  }

  /** Held until the tab is closed or has another. @returns {Promise<boolean>} false where another tab holds it */
  _claim(record) {
    if (this._held.has(record) || !navigator.locks) return Promise.resolve(true); // browsers have none on other hosts without TLS
    // After a reload the page before may hold it for another moment.
    const signal = AbortSignal.timeout(CLAIM_PATIENCE);
    return new Promise((resolve) => {
      const hold = () =>
        new Promise((release) => {
          this._held.set(record, release);
          resolve(true);
        });
      navigator.locks.request(`${DATABASE}.${record}`, { signal }, hold).catch(() => resolve(false));
    });
  }

  /** Throws the oldest records away. @returns {Promise<string|null>} the newest one that no open tab holds */
  async _prune() {
    if (!this._database) return null;
    const { held } = (await navigator.locks?.query()) ?? { held: [] };
    const open = new Set(held.map(({ name }) => name));
    const store = this._database.transaction("pictures").objectStore("pictures");
    const [records, pictures] = await Promise.all([answered(store.getAllKeys()), answered(store.getAll())]);
    const free = records
      .map((record, index) => ({ record, saved: pictures[index].saved }))
      .filter(({ record }) => record !== this.record && !open.has(`${DATABASE}.${record}`))
      .sort((a, b) => b.saved - a.saved);
    const old = free.slice(navigator.locks ? KEPT_RECORDS : KEPT_WITHOUT_LOCKS);
    await this._transact((transaction) => {
      for (const { record } of old) {
        transaction.objectStore("pictures").delete(record);
        transaction.objectStore("work").delete(record);
        transaction.objectStore("masks").delete(masksOf(record));
      }
    });
    return navigator.locks ? (free[0]?.record ?? null) : null;
  }

  // -- writing -------------------------------------------------------------------------------------------------------

  _write(change) {
    this._writing = this._writing.then(() => this._transact(change));
    return this._writing;
  }

  _transact(change) {
    if (!this._database) return Promise.resolve();
    return new Promise((resolve) => {
      try {
        const transaction = this._database.transaction(STORES, "readwrite");
        transaction.oncomplete = () => resolve();
        transaction.onabort = () => resolve(this._fail());
        change(transaction);
        transaction.commit(); // a page that is being left is not asked whether it has more to write
      } catch {
        resolve(this._fail());
      }
    });
  }

  _fail() {
    if (!this._hasFailed) this._onFailure();
    this._hasFailed = true;
    this._database = null;
  }
}
