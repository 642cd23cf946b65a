/**
 * The browser's database: its stores, and how older versions of it become the current one.
 *
 * - index: record -> summary of an image and its work (name, status, size, the project that it belongs to)
 * - pictures, work, masks: the image file, the packed history, the masks, each written once
 * - thumbnails: record -> small image
 * - projects: project -> order of its records, and which of them is open
 * - settings: name -> value, for the whole browser
 */
const DATABASE = "triton-sam";
const VERSION = 4;
const STORES = ["index", "pictures", "work", "masks", "thumbnails", "projects", "settings"];

/** @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
export const answered = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/**
 * @param {() => void} onBlocked called if a tab with an older version of the page must be closed first
 * @returns {Promise<IDBDatabase>}
 */
export async function openDatabase(onBlocked = () => {}) {
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
        index.put({ ...entry, project, isDone: false, width: 0, height: 0, objectCount, view: null }, record);
      };
    }
  };
}
