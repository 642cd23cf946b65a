/**
 * Work that outlives a reload, in the browser's own database. Every tab has a record of its own, so that two tabs do not
 * overwrite each other; a new tab takes up the newest record that no open tab holds.
 *
 * @typedef {{name: string, file: Blob}} SavedPicture
 * @typedef {{history: import("./core/history.js").History, keys: Record<string, string>}} SavedWork
 */
import { packed, unpacked } from "./core/saved_work.js";

const DATABASE = "triton-sam";
const TAB = "triton-sam.tab";
/** Records of tabs that were closed; each may hold an image of many megabytes. */
const KEPT_RECORDS = 4;
const CLAIM_PATIENCE = 500;
const STORES = ["pictures", "work", "masks"];

const request = (asked) =>
  new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });

function openDatabase() {
  const asked = indexedDB.open(DATABASE, 1);
  asked.onupgradeneeded = () => {
    for (const store of STORES) asked.result.createObjectStore(store);
  };
  return request(asked);
}

const masksOf = (tab) => IDBKeyRange.bound([tab, 0], [tab, Infinity]);

/** Storage may be forbidden or full: the page then works as before, only without a memory. */
export class Store {
  /** @param {() => void} onFailure called once when nothing can be kept */
  constructor(onFailure) {
    this._onFailure = onFailure;
    this._tab = "";
    this._database = null;
    this._hasFailed = false;
    // Writes wait until it is known whose record this is.
    this._writing = new Promise((resolve) => (this._begin = resolve));
    this._ids = new WeakMap();
    this._lastId = 0;
  }

  /** @returns {Promise<(SavedPicture & SavedWork)|null>} what this tab had before, or what a closed one left */
  async open() {
    try {
      this._database = await openDatabase();
      this._tab = await this._ownRecord();
      const [picture, work] = await Promise.all([this._get("pictures", this._tab), this._get("work", this._tab)]);
      if (!picture || !work) return null;
      const masks = await this._masks();
      return { ...picture, ...work, history: unpacked(work.history, (id) => masks.get(id)) };
    } catch {
      this._fail();
      return null;
    } finally {
      this._begin();
    }
  }

  /** @param {SavedPicture} picture @param {SavedWork} work */
  savePicture(picture, work) {
    this._ids = new WeakMap();
    return this._write((transaction) => {
      transaction.objectStore("masks").delete(masksOf(this._tab));
      transaction.objectStore("pictures").put({ ...picture, saved: Date.now() }, this._tab);
      this._putWork(transaction, work);
    });
  }

  /** @param {SavedWork} work */
  saveWork(work) {
    return this._write((transaction) => this._putWork(transaction, work));
  }

  _putWork(transaction, work) {
    const idOf = (mask) => {
      if (!this._ids.has(mask)) {
        this._ids.set(mask, ++this._lastId);
        transaction.objectStore("masks").put(mask, [this._tab, this._lastId]);
      }
      return this._ids.get(mask);
    };
    transaction.objectStore("work").put({ ...work, history: packed(work.history, idOf) }, this._tab);
  }

  /** @returns {Promise<Map<number, import("./core/mask.js").Mask>>} */
  async _masks() {
    const store = this._database.transaction("masks").objectStore("masks");
    const range = masksOf(this._tab);
    const [keys, masks] = await Promise.all([request(store.getAllKeys(range)), request(store.getAll(range))]);
    keys.forEach(([, id], index) => this._ids.set(masks[index], id));
    this._lastId = keys.at(-1)?.[1] ?? 0;
    return new Map(keys.map(([, id], index) => [id, masks[index]]));
  }

  async _ownRecord() {
    const previous = sessionStorage.getItem(TAB);
    let tab = previous && (await this._claim(previous)) ? previous : null;
    if (!previous) tab = await this._orphan();
    tab ??= `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
    await this._claim(tab);
    sessionStorage.setItem(TAB, tab);
    return tab;
  }

  /** Held until the tab is closed. @returns {Promise<boolean>} false where another tab holds it (a duplicated one) */
  _claim(tab) {
    if (tab === this._claimed || !navigator.locks) return Promise.resolve(true); // no locks without TLS on other hosts
    // After a reload the page before may hold it for another moment.
    const signal = AbortSignal.timeout(CLAIM_PATIENCE);
    return new Promise((resolve) => {
      const hold = () => {
        this._claimed = tab;
        resolve(true);
        return new Promise(() => {});
      };
      navigator.locks.request(`${DATABASE}.${tab}`, { signal }, hold).catch(() => resolve(false));
    });
  }

  /** The newest record that no open tab holds; the oldest ones are thrown away. */
  async _orphan() {
    if (!navigator.locks) return null;
    const { held } = await navigator.locks.query();
    const open = new Set(held.map(({ name }) => name));
    const store = this._database.transaction("pictures").objectStore("pictures");
    const [tabs, pictures] = await Promise.all([request(store.getAllKeys()), request(store.getAll())]);
    const orphans = tabs
      .map((tab, index) => ({ tab, saved: pictures[index].saved }))
      .filter(({ tab }) => !open.has(`${DATABASE}.${tab}`))
      .sort((a, b) => b.saved - a.saved);
    const old = orphans.slice(KEPT_RECORDS);
    await this._transact((transaction) => {
      for (const { tab } of old) {
        transaction.objectStore("pictures").delete(tab);
        transaction.objectStore("work").delete(tab);
        transaction.objectStore("masks").delete(masksOf(tab));
      }
    });
    return orphans[0]?.tab ?? null;
  }

  _get(store, key) {
    return request(this._database.transaction(store).objectStore(store).get(key));
  }

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
