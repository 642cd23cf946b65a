/** The progress of upload and encode. The time of an encode is estimated from earlier ones. */
import { $ } from "./dom.js";
import { prefer, preference } from "./preferences.js";

const MEMORY = "encode-ms";
const FIRST_GUESS = 4000;
/** Delay, so that a fast encode, as on a GPU, does not make the page flicker. */
const PATIENCE = 250;

export class EncodeProgress {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this._images = app.images;
    this._connection = app.connection;
    this._isOpening = false;
    this._timer = null;
    this._busySince = null;
    this._before = app.images.state;
    app.images.addEventListener("state", () => this._show());
    app.connection.addEventListener("state", () => this._show());
    app.addEventListener("opening", ({ detail }) => {
      this._isOpening = detail;
      this._show();
    });
  }

  _show() {
    const { state } = this._images;
    if (state.phase === "ready" && this._before.phase === "encoding") {
      prefer(MEMORY, Math.round(performance.now() - this._before.since));
    }
    this._before = state;
    // While the server is away there is no progress, and the status shows why.
    const isBusy =
      (this._isOpening || state.phase === "sending" || state.phase === "encoding") && this._connection.state !== "away";
    this._busySince = isBusy ? (this._busySince ?? performance.now()) : null;
    clearInterval(this._timer);
    if (isBusy) this._timer = setInterval(() => this._tick(), 100);
    this._tick();
  }

  _tick() {
    const { phase, share, since } = this._images.state;
    const isLong = this._busySince !== null && performance.now() - this._busySince > PATIENCE;
    $("progress").hidden = !isLong;
    if (!isLong) return;
    if (this._isOpening) {
      $("progress-text").textContent = "Opening the image";
      $("progress-bar").removeAttribute("value");
      return;
    }
    if (phase === "sending") {
      $("progress-text").textContent = "Sending the image";
      $("progress-bar").value = share;
      return;
    }
    const spent = performance.now() - since;
    // It slows down towards the end and never reaches it.
    $("progress-bar").value = 1 - Math.exp((-2.2 * spent) / Number(preference(MEMORY, FIRST_GUESS)));
    $("progress-text").textContent = `Encoding the image, ${(spent / 1000).toFixed(0)} s`;
  }
}
