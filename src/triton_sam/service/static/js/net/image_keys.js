/**
 * The image keys of the open image: encoded once for each model, and again automatically when the server has evicted it.
 *
 * Events: "state" when {@link ImageKeys.state} has changed.
 * @typedef {{phase: "none"|"sending"|"encoding"|"ready"|"refused", share?: number, since?: number, error?: unknown}} State
 */
import { Problem } from "./problems.js";

/** Encodes in a row that the server evicted at once, before this is reported as an error. */
const MAX_IN_A_ROW = 4;
const FIRST_PAUSE = 500;
/** After this time an eviction is normal; milliseconds. */
const LONG = 30_000;
const RETRIED = ["internal_error", "forgetful"];

export class ImageKeys extends EventTarget {
  /**
   * @param {import("./service.js").Service} service
   * @param {import("./connection.js").Connection} connection
   */
  constructor(service, connection) {
    super();
    this._service = service;
    this._connection = connection;
    this._file = null;
    this._ahead = null;
    this._model = "";
    /** Model -> key, if known; stored with the work, so that a reload does not send the image again. */
    this.known = {};
    this._asked = null;
    this._begun = later();
    this._forgotten = 0;
    this._encodedAt = -Infinity;
    this._abort = new AbortController();
    /** @type {State} */
    this.state = { phase: "none" };
  }

  /**
   * @param {Blob|null} file
   * @param {Record<string, string>} [known] keys of an earlier session
   * @param {import("./encode_ahead.js").Ahead|null} [ahead] its encode, if it has begun already
   */
  open(file, known = {}, ahead = null) {
    this._file = file;
    this.known = { ...known };
    this._ahead = ahead && !known[ahead.model] ? ahead : null;
    this._restart();
  }

  /** @param {string} model */
  use(model) {
    if (model === this._model) return;
    this._model = model;
    this._restart();
  }

  get model() {
    return this._model;
  }

  /** The key for the current model, or null. */
  get key() {
    return this.known[this._model] ?? null;
  }

  /** @returns {Promise<string>} the key; rejects if the image is refused or was closed meanwhile */
  ready() {
    if (this.key) return Promise.resolve(this.key);
    if (this._file && this._model) this._asked ??= this._encode(this._abort.signal);
    // The list of models may arrive after the first click.
    return this._asked ?? this._begun.promise;
  }

  /** @param {string} key that the server no longer knows */
  forget(key) {
    // Hover and click may both report it: the second must not start another encode.
    if (this.key === key) {
      this._asked = null;
      this._forgotten = performance.now() - this._encodedAt > LONG ? 0 : this._forgotten + 1;
    }
    for (const [model, known] of Object.entries(this.known)) if (known === key) delete this.known[model];
  }

  _restart() {
    this._abort.abort(new DOMException("another image or model was chosen", "AbortError"));
    this._abort = new AbortController();
    this._asked = null;
    this._forgotten = 0;
    this._become({ phase: this.key ? "ready" : "none" });
    if (!this._file || !this._model) return;
    const key = this.ready();
    key.catch(() => {}); // reported through the state
    this._begun.resolve(key);
    this._begun = later();
  }

  async _encode(signal) {
    const model = this._model;
    const file = this._file;
    try {
      if (this._forgotten > 1) await this._rest(signal);
      const early = this._ahead && (await this._taken(model, signal));
      const answer = early ?? await this._connection.persist(() => {
        this._become({ phase: "sending", share: 0 });
        return this._service.encode(file, model, (share) => this._sent(share, signal), signal);
      }, signal);
      signal.throwIfAborted();
      this.known[model] = answer.image_key;
      this._encodedAt = performance.now();
      this._become({ phase: "ready" });
      return answer.image_key;
    } catch (error) {
      if (!signal.aborted) {
        this._become({ phase: "refused", error });
        // An error of the image is permanent; one of the server may pass, so the next request tries again.
        if (error instanceof Problem && RETRIED.includes(error.code)) {
          this._asked = null;
          this._forgotten = 0;
        }
      }
      throw error;
    }
  }

  /** @returns {Promise<{image_key: string}|null>} of an encode that began before the image was opened; null if there is none */
  async _taken(model, signal) {
    const ahead = this._ahead;
    this._ahead = null;
    if (ahead?.model !== model) {
      ahead?.cancel();
      return null;
    }
    this._become({ phase: "encoding", since: ahead.since });
    signal.addEventListener("abort", () => ahead.cancel(), { once: true });
    const key = await ahead.key;
    signal.throwIfAborted();
    return key ? { image_key: key } : null;
  }

  /** A pause before the next encode: retries without one would only add load. */
  async _rest(signal) {
    if (this._forgotten >= MAX_IN_A_ROW) throw new Problem("forgetful");
    await new Promise((resolve, reject) => {
      setTimeout(resolve, FIRST_PAUSE * 2 ** this._forgotten);
      signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    });
  }

  _sent(share, signal) {
    if (signal.aborted) return;
    this._become(share < 1 ? { phase: "sending", share } : { phase: "encoding", since: performance.now() });
  }

  _become(state) {
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}

function later() {
  const made = {};
  made.promise = new Promise((resolve) => (made.resolve = resolve));
  made.promise.catch(() => {}); // there may be no other handler
  return made;
}
