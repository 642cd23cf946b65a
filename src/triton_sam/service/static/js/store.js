/**
 * Work that outlives a reload, in the browser's own database. Every tab has a record of its own, so that two tabs do not
 * overwrite each other; a new tab takes up the newest record that no open tab holds.
 *
 * @typedef {{name: string, file: Blob}} SavedPicture
 * @typedef {{history: object, keys: Record<string, string>}} SavedWork
 */

const DATABASE = "triton-sam";
const TAB = "triton-sam.tab";
/** Records of tabs that were closed; each may hold an image of many megabytes. */
const KEPT_RECORDS = 4;

const request = (asked) =>
  new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });

function openDatabase() {
  const asked = indexedDB.open(DATABASE, 1);
  asked.onupgradeneeded = () => {
    asked.result.createObjectStore("pictures");
    asked.result.createObjectStore("work");
  };
  return request(asked);
}

/** Storage may be forbidden or full: the page then works as before, only without a memory. */
export class Store {
  /** @param {() => void} onFailure called once when nothing can be kept */
  constructor(onFailure) {
    this._onFailure = onFailure;
    this._tab = "";
    this._database = null;
    this._writing = Promise.resolve();
  }

  /** @returns {Promise<(SavedPicture & SavedWork)|null>} what this tab had before, or what a closed one left */
  async open() {
    try {
      this._database = await openDatabase();
      this._tab = await this._ownRecord();
      const [picture, work] = await Promise.all([this._get("pictures", this._tab), this._get("work", this._tab)]);
      return picture && work ? { ...picture, ...work } : null;
    } catch {
      this._fail();
      return null;
    }
  }

  /** @param {SavedPicture} picture @param {SavedWork} work */
  savePicture(picture, work) {
    return this._write((transaction) => {
      transaction.objectStore("pictures").put({ ...picture, saved: Date.now() }, this._tab);
      transaction.objectStore("work").put(work, this._tab);
    });
  }

  /** @param {SavedWork} work */
  saveWork(work) {
    return this._write((transaction) => transaction.objectStore("work").put(work, this._tab));
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
    return new Promise((resolve) => {
      navigator.locks.request(`${DATABASE}.${tab}`, { ifAvailable: true }, (lock) => {
        resolve(lock !== null);
        if (!lock) return undefined;
        this._claimed = tab;
        return new Promise(() => {});
      });
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
    await this._write((transaction) => {
      for (const { tab } of old) for (const name of ["pictures", "work"]) transaction.objectStore(name).delete(tab);
    });
    return orphans[0]?.tab ?? null;
  }

  _get(store, key) {
    return request(this._database.transaction(store).objectStore(store).get(key));
  }

  _write(change) {
    if (!this._database) return Promise.resolve();
    this._writing = this._writing.then(
      () =>
        new Promise((resolve) => {
          try {
            const transaction = this._database.transaction(["pictures", "work"], "readwrite");
            change(transaction);
            transaction.oncomplete = () => resolve();
            transaction.onabort = transaction.onerror = () => resolve(this._fail());
          } catch {
            resolve(this._fail());
          }
        }),
    );
    return this._writing;
  }

  _fail() {
    if (this._database !== undefined) this._onFailure();
    this._database = undefined;
  }
}
