/**
 * The state of the connection to the server. Failed requests wait here until a retry makes sense, so that only one poll runs,
 * one message is shown, and there is no burst of retries when the server is back.
 *
 * Events: "state" when {@link Connection.state} has changed, "back" when the server is available again: it may have other models.
 */
import { Problem } from "./problems.js";

const FIRST_PAUSE = 500;
const MAX_PAUSE = 5000;

export class Connection extends EventTarget {
  /** @param {import("./service.js").Service} service */
  constructor(service) {
    super();
    this._service = service;
    /** @type {"connecting"|"ready"|"away"|"locked"} */
    this.state = "connecting";
    /** @type {Problem|null} why it is not ready */
    this.problem = null;
    this._waiting = null;
    this._unlock = null;
    this._quickFailures = 0;
    window.addEventListener("online", () => this._wake?.());
  }

  /**
   * Retries a request until it succeeds or fails for good.
   * @template T
   * @param {() => Promise<T>} request
   * @param {AbortSignal} [signal]
   * @returns {Promise<T>}
   */
  async persist(request, signal) {
    for (;;) {
      try {
        const result = await request();
        this._quickFailures = 0;
        this.found();
        return result;
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        if (!error.passes && error.code !== "not_authorised") {
          this.found(); // a refusal shows that the server is available
          throw error;
        }
        await this.lost(error);
        signal?.throwIfAborted();
      }
    }
  }

  /** @param {Problem} problem why the server cannot be used now @returns {Promise<void>} resolved when it can be used again */
  lost(problem) {
    if (this._unlock) return this._waiting; // a token is needed first, whatever else fails meanwhile
    if (problem.code === "not_authorised") {
      this._become("locked", problem);
      this._waiting ??= new Promise((resolve) => (this._unlock = resolve)).finally(() => (this._waiting = null));
    } else {
      this._become("away", problem);
      this._waiting ??= this._untilReady().finally(() => (this._waiting = null));
    }
    return this._waiting;
  }

  /** The server has responded. Responses without a token do not count while one is needed. */
  found() {
    if (this.state !== "locked") this._become("ready", null);
  }

  /** @param {string} token from the user */
  unlock(token) {
    this._service.token = token;
    this._become("connecting", null);
    this._unlock?.();
    this._unlock = null;
  }

  async _untilReady() {
    // The health check may succeed while requests fail (a full queue), so there is a pause before the first one too.
    let pause = FIRST_PAUSE * 2 ** Math.min(3, this._quickFailures++);
    for (;;) {
      await this._sleep(pause);
      if (await this._service.isReady()) {
        this.found();
        return;
      }
      pause = Math.min(MAX_PAUSE, pause * 1.5);
    }
  }

  /** Until the time has passed, or the browser reports that the network is back. */
  _sleep(milliseconds) {
    return new Promise((resolve) => {
      this._wake = resolve;
      setTimeout(resolve, milliseconds);
    });
  }

  _become(state, problem) {
    const isNews = state !== this.state || problem?.code !== this.problem?.code;
    const isBack = state === "ready" && this.state === "away";
    this.state = state;
    this.problem = problem;
    if (isNews) this.dispatchEvent(new Event("state"));
    if (isBack) this.dispatchEvent(new Event("back"));
  }
}
