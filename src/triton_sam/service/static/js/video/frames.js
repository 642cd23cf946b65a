/**
 * The pictures of frames: those that are wanted are loaded, a few at a time and in the order in which they are wanted, and
 * those that were used last are kept. What nobody wants any more is not loaded to its end.
 *
 * Events: "frame" (detail: the frame that is there now), "failed" (detail: {frame, error}).
 */

const MOST_BYTES = 256 * 2 ** 20;
/** However large they are. */
const LEAST_KEPT = 6;
const PARALLEL = 3;

export class FrameCache extends EventTarget {
  /**
   * @param {(frame: number, signal: AbortSignal) => Promise<{close: () => void}>} load
   * @param {number} frameBytes of a picture in memory
   * @param {number} [mostBytes]
   */
  constructor(load, frameBytes, mostBytes = MOST_BYTES) {
    super();
    this._load = load;
    this.capacity = Math.max(LEAST_KEPT, Math.floor(mostBytes / frameBytes));
    /** @type {Map<number, {close: () => void}>} the one that was used last at the end */
    this._kept = new Map();
    /** @type {Map<number, AbortController>} */
    this._loading = new Map();
    this._wanted = [];
    this._isClosed = false;
  }

  get size() {
    return this._kept.size;
  }

  /** @param {number} frame @returns {object|null} its picture, if it is here; it belongs to the cache */
  get(frame) {
    const picture = this._kept.get(frame);
    if (!picture) return null;
    this._kept.delete(frame);
    this._kept.set(frame, picture);
    return picture;
  }

  /** @param {number[]} frames from now on, the most urgent first */
  want(frames) {
    this._wanted = frames.slice(0, this.capacity);
    for (const [frame, abort] of this._loading) if (!this._wanted.includes(frame)) abort.abort();
    this._fill();
  }

  close() {
    this._isClosed = true;
    for (const abort of this._loading.values()) abort.abort();
    for (const picture of this._kept.values()) picture.close();
    this._kept.clear();
  }

  _fill() {
    for (const frame of this._wanted) {
      if (this._loading.size >= PARALLEL || this._isClosed) return;
      if (!this._kept.has(frame) && !this._loading.has(frame)) this._begin(frame);
    }
  }

  async _begin(frame) {
    const abort = new AbortController();
    this._loading.set(frame, abort);
    try {
      const picture = await this._load(frame, abort.signal);
      if (this._isClosed || abort.signal.aborted) picture.close();
      else this._keep(frame, picture);
    } catch (error) {
      if (!abort.signal.aborted) {
        this._wanted = this._wanted.filter((other) => other !== frame); // else it would be tried for ever
        this.dispatchEvent(new CustomEvent("failed", { detail: { frame, error } }));
      }
    }
    this._loading.delete(frame);
    this._fill();
  }

  _keep(frame, picture) {
    this._kept.get(frame)?.close();
    this._kept.set(frame, picture);
    for (const old of [...this._kept.keys()]) {
      if (this._kept.size <= this.capacity) break;
      if (this._wanted.includes(old)) continue;
      this._kept.get(old).close();
      this._kept.delete(old);
    }
    this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
  }
}
