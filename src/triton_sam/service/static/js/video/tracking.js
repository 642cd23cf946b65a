/** Runs a propagation: one at a time. */
import { startOf, passes } from "./plan.js";

/** Milliseconds until the server has said that it was cancelled; then the connection is cut, which cancels it too. */
const PATIENCE = 3000;

export class Tracker {
  /**
   * @param {import("./film.js").Film} film
   * @param {import("./video_service.js").VideoService} service
   * @param {(error: unknown) => void} onProblem
   */
  constructor(film, service, onProblem) {
    this._film = film;
    this._service = service;
    this._onProblem = onProblem;
    this._abort = null;
  }

  /**
   * @param {"forward"|"backward"|"both"} direction
   * @param {number} shown the frame that is looked at
   * @returns {Promise<"done"|"cancelled"|"failed"|null>} null if there is nothing to begin with
   */
  async track(direction, shown) {
    const start = startOf(this._film, direction, shown);
    return start === null ? null : this.run(direction, start);
  }

  /** @returns {Promise<"done"|"cancelled"|"failed"|null>} */
  async run(direction, start) {
    const film = this._film;
    if (film.tracking) return null;
    const abort = new AbortController();
    this._abort = abort;
    film.setTracking({ direction, start, done: 0, of: passes(direction, start, film.info.frames), frame: start });
    let end = "cancelled";
    try {
      const body = { start_frame_index: start, direction };
      for await (const message of this._service.propagate(film.info.id, body, abort.signal)) {
        if (message.done) end = "done";
        else if (!message.cancelled) film.tracked(message);
      }
    } catch (error) {
      if (!abort.signal.aborted) {
        end = "failed";
        this._onProblem(error);
      }
    }
    this._abort = null;
    film.setTracking(null);
    return end;
  }

  /** What was tracked until now stays. */
  async cancel() {
    const abort = this._abort;
    if (!abort) return;
    const late = setTimeout(() => abort.abort(), PATIENCE);
    abort.signal.addEventListener("abort", () => clearTimeout(late));
    await this._service.cancel(this._film.info.id).catch(() => abort.abort());
  }

  /** The page leaves the video. */
  stop() {
    this._abort?.abort();
  }
}
