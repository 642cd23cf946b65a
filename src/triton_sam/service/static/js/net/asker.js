/**
 * Questions to the model: one at a time for what was clicked (over HTTP, none is dropped but by a newer one for the same
 * object), and beside it one at a time for the mouse (over the socket). So a page has never more than two in flight.
 *
 * @typedef {import("../core/document.js").Candidate} Candidate
 * @typedef {{candidates: Candidate[], serverMs: number, roundTripMs: number}} Answer
 */
import { fromCocoRle } from "../core/mask.js";
import { Problem } from "./problems.js";

const REMEMBERED = 32;

/** @returns {Candidate[]} in the model's own order */
export function candidatesOf(result) {
  return result.masks.map(({ data, score }) => ({ mask: fromCocoRle(data), score }));
}

/** Answers to recent questions: a click mostly asks what the mouse has asked already. */
export class Answers {
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
    if (this._byKey.size > REMEMBERED) this._byKey.delete(this._byKey.keys().next().value);
  }
}

export class Asker {
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
   * @param {() => boolean} isWanted asked when its turn comes: nobody waits for what was undone meanwhile
   * @param {AbortSignal} signal when the image is closed
   * @returns {Promise<Answer|null>} null where it was not wanted any more
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

  /** The key for the model that is in use when it comes: a person may choose another while one encodes. */
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
