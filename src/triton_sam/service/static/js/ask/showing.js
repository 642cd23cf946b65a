/** "Show me": what an answer is about becomes objects. Who looks for it is loaded with the first one. */
import { Problem, sentence } from "../net/problems.js";

const KIND = "show";

export class Showing {
  /** @param {import("../app.js").App} app @param {() => void} tell called when it begins and ends */
  constructor(app, tell) {
    this._app = app;
    this._tell = tell;
    this._abort = null;
  }

  /**
   * @param {import("../core/chat.js").Turn} turn @param {import("../core/grounding.js").Found[]} found boxes of its answer
   * @returns {"none"|"offered"|"busy"}
   */
  of({ state, model }, found) {
    if (state !== "done" || !(found.length || model.tasks?.includes("ground"))) return "none";
    return this._abort ? "busy" : "offered";
  }

  /** Begins, or ends what has begun. @returns {Promise<boolean>} whether it is shown */
  async toggle(turn, found) {
    if (this._abort) {
      this._abort.abort();
      return false;
    }
    let isShown = false;
    const app = this._app;
    const { questionsEnd } = app;
    const abort = new AbortController();
    this._abort = abort;
    app.notice(KIND, "");
    this._tell();
    try {
      const { showMe } = await import("./show_me.js").catch(() => {
        throw new Problem("unreachable");
      });
      const told = await showMe(app, turn, found, AbortSignal.any([abort.signal, questionsEnd]));
      app.notice(KIND, told);
      isShown = !told;
    } catch (error) {
      if (!abort.signal.aborted && !questionsEnd.aborted && error?.name !== "AbortError") app.notice(KIND, sentence(error));
    }
    this._abort = null;
    this._tell();
    return isShown;
  }
}
