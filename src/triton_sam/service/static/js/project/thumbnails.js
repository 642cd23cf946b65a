/**
 * Small pictures for the list: made once, off the main thread, and stored. Missing ones are made when their row is seen, the
 * latest request first, because a user who scrolls waits for what is visible now.
 */
/** Pixels of the longer side: twice what a row shows, for dense screens. */
const SIZE = 128;

export class Thumbnails {
  /** @param {import("./project.js").Project} project */
  constructor(project) {
    this._project = project;
    this._worker = null;
    this._count = 0;
    this._answers = new Map();
    /** @type {{record: string, resolve: (blob: Blob|null) => void, isWanted: () => boolean}[]} */
    this._queue = [];
    this._isBusy = false;
  }

  /**
   * @param {string} record @param {() => boolean} isWanted asked again when its turn comes
   * @returns {Promise<Blob|null>} null if it is not wanted any more, or cannot be made
   */
  async get(record, isWanted) {
    const stored = await this._project.store.readThumbnail(record);
    if (stored || !isWanted()) return stored;
    return new Promise((resolve) => {
      this._queue.push({ record, resolve, isWanted });
      this._work();
    });
  }

  /** @param {string} record @param {ImageBitmap} bitmap used up by this @returns {Promise<Blob|null>} */
  async make(record, bitmap) {
    const blob = await this._shrunk(bitmap);
    if (blob) this._project.store.saveThumbnail(record, blob);
    return blob;
  }

  async _work() {
    if (this._isBusy) return;
    this._isBusy = true;
    for (let next = this._queue.pop(); next; next = this._queue.pop()) {
      next.resolve(next.isWanted() ? await this._missing(next.record) : null);
    }
    this._isBusy = false;
  }

  async _missing(record) {
    const { store, opening } = this._project;
    try {
      const picture = await store.readPicture(record);
      if (!picture) return null;
      const { bitmap } = await opening.read(picture.file);
      return await this.make(record, bitmap);
    } catch {
      return null; // whoever opens the image is told why
    }
  }

  _shrunk(bitmap) {
    this._worker ??= this._start();
    const id = ++this._count;
    return new Promise((resolve) => {
      this._answers.set(id, resolve);
      this._worker.postMessage({ id, bitmap, size: SIZE }, [bitmap]);
    });
  }

  _start() {
    const worker = new Worker(new URL("./thumbnail_worker.js", import.meta.url), { type: "module" });
    const answer = (id, blob) => {
      this._answers.get(id)?.(blob);
      this._answers.delete(id);
    };
    worker.onmessage = ({ data: { id, blob } }) => answer(id, blob);
    worker.onerror = (event) => {
      event.preventDefault(); // the server is away: the next one may be loaded again
      this._worker = null;
      for (const id of [...this._answers.keys()]) answer(id, null);
    };
    return worker;
  }
}
