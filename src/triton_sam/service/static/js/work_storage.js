/**
 * Stores the work in IndexedDB, so that it survives a reload: one record per image. A tab locks the records that it works on,
 * so that two tabs do not overwrite each other; a new tab opens the newest record that no open tab has locked.
 *
 * @typedef {{name: string, file: Blob, history: import("./core/history.js").History, keys: Record<string, string>}} Work
 * @typedef {{record: string, name: string, saved: number, hasWork: boolean}} Entry
 */
import { canRedo, canUndo } from "./core/history.js";
import { packed, unpacked } from "./core/history_packing.js";
import { answered, masksOf, newName, openDatabase } from "./storage/database.js";

const DATABASE = "triton-sam";
const RECORD = "triton-sam.record";
/** index: summaries of the records; masks are written once each. */
const STORES = ["index", "pictures", "work", "masks"];
/** Limit of unlocked records; each may have an image of many megabytes. */
const KEPT_RECORDS = 5;
/** Without locks it is unknown which records are in use, so more of them are kept. */
const KEPT_WITHOUT_LOCKS = 12;
const CLAIM_PATIENCE = 1500;

/** @returns {boolean} whether it has work worth keeping */
export const hasWork = (history) => history.present.things.length > 0 || canUndo(history) || canRedo(history);

/** Whether every mask of its documents was found. */
const isWhole = ({ past, present, future }) =>
  [...past, present, ...future].every(({ things }) =>
    things.every(({ answer }) => !answer || answer.candidates.every(({ mask }) => mask !== null)));

/** If storage is disabled or full, the page works without it. */
export class Store {
  /** @param {() => void} onFailure called once if nothing can be stored */
  constructor(onFailure) {
    this._onFailure = onFailure;
    this._database = null;
    this._hasFailed = false;
    this._held = new Map();
    /** Record -> (mask -> number), of the stored masks. */
    this._ids = new Map();
    this._lastId = 0;
    /** The record that is written. */
    this.record = "";
    /** Resolved when the record is known. */
    this.started = new Promise((resolve) => (this._start = resolve));
  }

  /** @returns {Promise<Work|null>} the work of this tab before a reload, or of a closed tab */
  async open() {
    try {
      this._database = await openDatabase();
      this.adopt(await this._ownRecord());
      return await this._read(this.record);
    } catch {
      this._fail();
      return null;
    } finally {
      this._start();
    }
  }

  /**
   * Keeps a value for the whole browser, such as the list of classes.
   * @param {string} name @param {unknown} value that IndexedDB can store
   */
  async saveSetting(name, value) {
    if (!this._database) await this.started;
    this._transact((transaction) => transaction.objectStore("settings").put(value, name), ["settings"]);
  }

  /** @param {string} name @returns {Promise<any>} undefined if there is none */
  async readSetting(name) {
    await this.started;
    try {
      if (this._database) return await answered(this._database.transaction("settings").objectStore("settings").get(name));
    } catch {
      this._fail();
    }
    return undefined;
  }

  /** Starts a new record. */
  begin() {
    const record = newName();
    this._claim(record);
    this.adopt(record);
    this._prune().catch(() => {});
  }

  /** Writes to this record from now on; the previous one stays locked until it is released. @param {string} record */
  adopt(record) {
    this.record = record;
    try {
      sessionStorage.setItem(RECORD, record);
    } catch {
      // A reload will not find the record, but a new tab may.
    }
  }

  /** Unlocks a record for other tabs. @param {string} record */
  release(record) {
    if (record === this.record) return;
    this._held.get(record)?.();
    this._held.delete(record);
  }

  /** @param {string} record of {@link earlier}, locked from now on @returns {Promise<Work|null>} */
  async read(record) {
    try {
      if (this._database && (await this._claim(record))) return await this._read(record);
    } catch {
      this._fail();
    }
    return null;
  }

  /** @returns {Promise<Entry[]>} work that can be reopened, the newest first */
  async earlier() {
    try {
      const { free, mine } = await this._entries();
      return [...free, ...mine].filter((entry) => entry.hasWork).sort((a, b) => b.saved - a.saved);
    } catch {
      return [];
    }
  }

  /** @param {Work} work with a new image */
  savePicture(work) {
    const { record } = this;
    this._transact((transaction) => {
      this._ids.set(record, new WeakMap());
      transaction.objectStore("masks").delete(masksOf(record));
      transaction.objectStore("pictures").put(work.file, record);
      this._putWork(transaction, record, work);
    });
  }

  /** @param {Work} work whose image is already stored */
  saveWork(work) {
    const { record } = this;
    this._transact((transaction) => this._putWork(transaction, record, work));
  }

  _putWork(transaction, record, { name, history, keys }) {
    if (!this._ids.has(record)) this._ids.set(record, new WeakMap());
    const ids = this._ids.get(record);
    const idOf = (mask) => {
      if (!ids.has(mask)) {
        ids.set(mask, ++this._lastId);
        transaction.objectStore("masks").put(mask, [record, this._lastId]);
      }
      return ids.get(mask);
    };
    transaction.objectStore("work").put({ history: packed(history, idOf), keys }, record);
    transaction.objectStore("index").put({ name, saved: Date.now(), hasWork: hasWork(history) }, record);
  }

  /** @returns {Promise<Work|null>} null also for an incomplete record */
  async _read(record) {
    const read = (store, action) => answered(action(this._database.transaction(store).objectStore(store)));
    const range = masksOf(record);
    const [entry, file, work, keys, masks] = await Promise.all([
      read("index", (store) => store.get(record)),
      read("pictures", (store) => store.get(record)),
      read("work", (store) => store.get(record)),
      read("masks", (store) => store.getAllKeys(range)),
      read("masks", (store) => store.getAll(range)),
    ]);
    if (!entry || !file || !work) return null;
    const byId = new Map(keys.map(([, id], index) => [id, masks[index]]));
    const history = unpacked(work.history, (id) => byId.get(id) ?? null);
    if (!isWhole(history)) return null;
    this._ids.set(record, new WeakMap(keys.map(([, id], index) => [masks[index], id])));
    this._lastId = Math.max(this._lastId, keys.at(-1)?.[1] ?? 0);
    return { name: entry.name, file, history, keys: work.keys };
  }

  // -- locks of records ----------------------------------------------------------------------------------------------

  async _ownRecord() {
    const previous = sessionStorage.getItem(RECORD);
    if (previous && (await this._claim(previous))) return previous;
    const orphan = previous ? null : await this._prune();
    if (orphan && (await this._claim(orphan))) return orphan;
    const record = newName();
    await this._claim(record);
    return record;
  }

  /** Locks a record until it is released or the tab is closed. @returns {Promise<boolean>} false if another tab has it */
  _claim(record) {
    if (this._held.has(record) || !navigator.locks) return Promise.resolve(true); // not available on other hosts without TLS
    // After a reload the previous page may keep the lock for a moment.
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

  /** @returns {Promise<{free: Entry[], mine: Entry[]}>} unlocked records, and the other records of this tab */
  async _entries() {
    if (!this._database) return { free: [], mine: [] };
    const { held } = (await navigator.locks?.query()) ?? { held: [] };
    const taken = new Set(held.map(({ name }) => name));
    const store = this._database.transaction("index").objectStore("index");
    const [records, values] = await Promise.all([answered(store.getAllKeys()), answered(store.getAll())]);
    const others = records
      .map((record, index) => ({ record, ...values[index] }))
      .filter(({ record }) => record !== this.record);
    const mine = others.filter(({ record }) => this._held.has(record));
    const free = others.filter(({ record }) => !this._held.has(record) && !taken.has(`${DATABASE}.${record}`));
    return { free, mine };
  }

  /** Deletes records: empty ones first, then the oldest. @returns {Promise<string|null>} one for a new tab */
  async _prune() {
    const { free } = await this._entries();
    free.sort((a, b) => Number(b.hasWork) - Number(a.hasWork) || b.saved - a.saved);
    const old = free.slice(navigator.locks ? KEPT_RECORDS : KEPT_WITHOUT_LOCKS);
    if (old.length) {
      this._transact((transaction) => {
        for (const { record } of old) {
          for (const store of ["index", "pictures", "work"]) transaction.objectStore(store).delete(record);
          transaction.objectStore("masks").delete(masksOf(record));
        }
      });
    }
    return navigator.locks && free[0]?.hasWork ? free[0].record : null;
  }

  // -- writing -------------------------------------------------------------------------------------------------------

  /** Starts at once: a page that is being closed gets no later chance. The database keeps the order. */
  _transact(change, stores = STORES) {
    if (!this._database) return;
    try {
      const transaction = this._database.transaction(stores, "readwrite");
      transaction.onabort = () => this._fail();
      change(transaction);
      transaction.commit(); // a page that is being closed would not commit automatically
    } catch {
      this._fail();
    }
  }

  _fail() {
    if (!this._hasFailed) this._onFailure();
    this._hasFailed = true;
    this._database = null;
  }
}
