/**
 * The queue of segment requests for clicks: one in flight at a time, over HTTP; a request is dropped only if a newer one for
 * the same object replaces it. With the hover request on the WebSocket, a page has at most two requests in flight.
 *
 * @typedef {import("../core/document.js").Candidate} Candidate
 * @typedef {{candidates: Candidate[], serverMs: number, roundTripMs: number}} Answer
 */
import { fromCocoRle } from "../core/mask.js";
import { Problem } from "./problems.js";

const MAX_CACHED = 32;

/** @returns {Candidate[]} in the model's order */
export function candidatesOf(result) {
  return result.masks.map(({ data, score }) => ({ mask: fromCocoRle(data), score }));
}

/** Recent masks by prompt: a click mostly repeats the prompt of the hover before it. */
export class AnswerCache {
  constructor() {
    this._byKey = new Map();
  }

  /** @param {string} imageKey @param {string} promptKey */
  get(imageKey, promptKey) {
    return this._byKey.get(`${imageKey} ${promptKey}`) ?? null;
  }

  /** @param {Candidate[]} candidates */
  put(imageKey, promptKey, candidates) {
    this._byKey.set(`${imageKey} ${promptKey}`, candidates);
    if (this._byKey.size > MAX_CACHED) this._byKey.delete(this._byKey.keys().next().value);
  }
}

export class SegmentQueue {
  /**
   * @param {import("./service.js").Service} service
   * @param {import("./connection.js").Connection} connection
   * @param {import("./image_keys.js").ImageKeys} images
   */
  constructor(service, connection, images) {
    this._service = service;
    this._connection = connection;
    this._images = images;
    this._queue = Promise.resolve();
  }

  /**
   * @param {object} prompt of promptOf
   * @param {() => boolean} isWanted called when its turn comes: the prompt may have been undone meanwhile
   * @param {AbortSignal} signal aborted when the image is closed
   * @returns {Promise<Answer|null>} null if it was no longer wanted
   */
  ask(prompt, isWanted, signal) {
    const turn = this._queue.then(() => (isWanted() && !signal.aborted ? this._ask(prompt, signal) : null));
    this._queue = turn.catch(() => {});
    return turn;
  }

  async _ask(prompt, signal) {
    for (;;) {
      const key = await this._key(signal);
      const started = performance.now();
      try {
        const body = { ...prompt, image_key: key, model: this._images.model };
        const result = await this._connection.persist(() => this._service.segment(body, signal), signal);
        return {
          candidates: candidatesOf(result),
          serverMs: result.timings_ms.total,
          roundTripMs: performance.now() - started,
          imageKey: key,
        };
      } catch (error) {
        if (!(error instanceof Problem) || error.code !== "image_expired") throw error;
        this._images.forget(key);
      }
    }
  }

  /** The key for the current model: the user may choose another one during the encode. */
  async _key(signal) {
    for (;;) {
      try {
        return await this._images.ready();
      } catch (error) {
        if (error?.name !== "AbortError" || signal.aborted) throw error;
      }
    }
  }
}
