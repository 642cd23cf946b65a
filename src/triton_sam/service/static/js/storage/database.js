/**
 * The browser's database: its stores, and how older versions of it become the current one.
 *
 * - index: record -> summary of an image and its work (name, status, size, the project that it belongs to)
 * - pictures: record -> {file, view}, or only the file
 * - work, masks: the packed history, and its masks, each written once
 * - thumbnails: record -> small image
 * - projects: project -> order of its records, and which of them is open
 * - settings: name -> value, for the whole browser
 */
const DATABASE = "triton-sam";
const VERSION = 4;
const STORES = ["index", "pictures", "work", "masks", "thumbnails", "projects", "settings"];

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
const answered = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/**
 * @param {() => void} onBlocked called if a tab with an older version of the page must be closed first
 * @returns {Promise<IDBDatabase>}
 */
async function openDatabase(onBlocked) {
  const request = indexedDB.open(DATABASE, VERSION);
  request.onblocked = onBlocked;
  request.onupgradeneeded = ({ oldVersion }) => {
    const { objectStoreNames } = request.result;
    for (const store of STORES) if (!objectStoreNames.contains(store)) request.result.createObjectStore(store);
    if (oldVersion > 0 && oldVersion < 4) moveIntoProject(request.transaction);
  };
  const database = await answered(request);
  database.onversionchange = () => database.close(); // a newer version of the page is opened in another tab
  return database;
}

/** The keys of a record's masks. @param {string} record */
export const masksOf = (record) => IDBKeyRange.bound([record, 0], [record, Infinity]);

/** @returns {string} a new name of a record or project */
export const newName = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;

/** The open database. After a failure it is closed for good, and the page works without it. */
export class Database {
  /**
   * @param {object} tell
   * @param {() => void} tell.failed called once if nothing can be stored
   * @param {() => void} tell.full called if there is no room for what was to be stored
   * @param {() => void} tell.blocked called if a tab with an older page must be closed first
   */
  constructor(tell) {
    this._tell = tell;
    this._open = null;
    this._hasFailed = false;
  }

  async open() {
    this._open = await openDatabase(this._tell.blocked);
  }

  get isOpen() {
    return this._open !== null;
  }

  /**
   * @param {string} store @param {(store: IDBObjectStore) => IDBRequest} action
   * @returns {Promise<any>} undefined if it cannot be read
   */
  async read(store, action) {
    if (!this._open) return undefined;
    try {
      return await answered(action(this._open.transaction(store).objectStore(store)));
    } catch {
      this.fail();
      return undefined;
    }
  }

  /**
   * Starts at once: a page that is being closed gets no later chance. The database keeps the order.
   * @param {string[]} names of the stores @param {(stores: Record<string, IDBObjectStore>) => void} change
   * @returns {Promise<boolean>} whether it is stored; true if there is no database, and the caller has it in memory
   */
  transact(names, change) {
    if (!this._open) return Promise.resolve(true);
    return new Promise((resolve) => {
      try {
        const transaction = this._open.transaction(names, "readwrite");
        transaction.oncomplete = () => resolve(true);
        transaction.onabort = () => {
          if (transaction.error?.name === "QuotaExceededError") this._tell.full();
          else this.fail();
          resolve(false);
        };
        change(Object.fromEntries(names.map((name) => [name, transaction.objectStore(name)])));
        transaction.commit(); // a page that is being closed would not commit automatically
      } catch {
        this.fail();
        resolve(false);
      }
    });
  }

  fail() {
    if (!this._hasFailed) this._tell.failed();
    this._hasFailed = true;
    this._open = null;
  }
}

/** Up to version 3 there were single images, of which old ones were deleted: they become the images of one project. */
function moveIntoProject(transaction) {
  const project = newName();
  const index = transaction.objectStore("index");
  const found = [];
  index.openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (cursor) {
      found.push({ record: cursor.key, entry: cursor.value });
      cursor.continue();
      return;
    }
    if (!found.length) return;
    found.sort((a, b) => a.entry.saved - b.entry.saved);
    const order = found.map(({ record }) => record);
    transaction.objectStore("projects").put({ order, current: order.at(-1), saved: Date.now() }, project);
    for (const { record, entry } of found) {
      transaction.objectStore("work").get(record).onsuccess = ({ target: { result: work } }) => {
        const objectCount = work?.history.present.things.length ?? 0;
        index.put({ ...entry, project, isDone: false, width: 0, height: 0, objectCount, keys: work?.keys ?? {} }, record);
      };
    }
  };
}
