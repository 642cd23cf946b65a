/**
 * "Find everything" in the open image: one search at a time. What is found is shown while it comes, and becomes part of
 * the document, as one undo step, when the search is complete. Work on other objects goes on meanwhile.
 *
 * Events: "state" when {@link FindSession.state} has changed.
 * @typedef {{phase: "idle"|"waiting"|"finding", done?: number, of?: number, count?: number}} State
 *   waiting: for the image or the server; done of all points were tried, count objects were found
 */
import { foundSoFar, newFinding, withProgress, withResult } from "./core/find_stream.js";
import { messages } from "./net/finding.js";
import { Problem, sentence } from "./net/problems.js";

const KIND = "find";

export class FindSession extends EventTarget {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    super();
    this._app = app;
    this._abort = null;
    /** @type {State} */
    this.state = { phase: "idle" };
  }

  get isBusy() {
    return this._abort !== null;
  }

  /** @param {object} options by the API's names @returns {Promise<void>} when it is over, however it ends */
  async start(options) {
    const app = this._app;
    if (this.isBusy || !app.picture) return;
    const abort = new AbortController();
    const { questionsEnd } = app;
    this._abort = abort;
    this._finding = null;
    app.notice(KIND, "");
    this._become({ phase: "waiting" });
    try {
      await this._follow(options, AbortSignal.any([abort.signal, questionsEnd]));
    } catch (error) {
      if (!abort.signal.aborted && !questionsEnd.aborted && error?.name !== "AbortError") app.notice(KIND, sentence(error));
    }
    this._abort = null;
    if (app.soFar) app.showSoFar(null);
    this._become({ phase: "idle" });
    if (abort.signal.aborted && !questionsEnd.aborted) this._offer(questionsEnd);
  }

  /** Ends the search; what was found so far can still be kept. */
  cancel() {
    this._abort?.abort(new DOMException("the user has cancelled the search", "AbortError"));
  }

  async _follow(options, signal) {
    const { picture: { width, height }, document } = this._app;
    const fresh = newFinding({ width, height }, document.things.map(({ colour }) => colour));
    for await (const { kind, document: message } of messages(this._app, options, signal)) {
      this._finding = kind === "begin" ? fresh : understood(() => (kind === "result" ? withResult : withProgress)(this._finding, message));
      const found = foundSoFar(this._finding);
      if (kind === "result") {
        this._take(found);
        return;
      }
      const { done, of } = this._finding;
      this._app.showSoFar(found);
      this._become({ phase: "finding", done, of, count: found.length });
    }
  }

  _take(found) {
    this._app.takeFound(found);
    if (!found.length) this._app.notice(KIND, "Nothing was found. Try more points per side, or another model.");
    this._app.announce(counted(found.length));
  }

  /** A search that was cancelled changes nothing, but its objects may be what the user wanted. */
  _offer(questionsEnd) {
    const found = this._finding ? foundSoFar(this._finding) : [];
    const keep = () => questionsEnd.aborted || this._take(found);
    const action = found.length ? { label: `Keep ${found.length.toLocaleString("en")} found so far`, run: keep } : null;
    this._app.notice(KIND, "Cancelled. Nothing was changed.", action);
    questionsEnd.addEventListener("abort", () => this._app.notice(KIND, ""), { once: true });
  }

  _become(state) {
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}

/** @returns {string} for screen readers */
const counted = (count) => (count === 1 ? "1 object was found." : `${count.toLocaleString("en")} objects were found.`);

function understood(read) {
  try {
    return read();
  } catch {
    throw new Problem("unreadable", "The server's masks cannot be read.");
  }
}
