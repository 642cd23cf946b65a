/** How far the image is on its way to being clicked. Nobody can know how long an encode takes: the last ones tell. */
import { $ } from "./dom.js";
import { prefer, preference } from "./preferences.js";

const MEMORY = "encode-ms";
const FIRST_GUESS = 4000;
/** Quick encodes, as on a GPU, shall not make the page blink. */
const PATIENCE = 250;

export class EncodeProgress {
  /** @param {import("../net/image_keys.js").ImageKeys} images */
  constructor(images) {
    this._images = images;
    this._timer = null;
    this._begun = null;
    images.addEventListener("state", () => this._show());
  }

  _show() {
    const { phase, since } = this._images.state;
    if (phase === "ready" && this._began === "encoding") prefer(MEMORY, Math.round(performance.now() - this._since));
    this._began = phase;
    this._since = since;
    const isBusy = phase === "sending" || phase === "encoding";
    this._begun = isBusy ? (this._begun ?? performance.now()) : null;
    clearInterval(this._timer);
    if (isBusy) this._timer = setInterval(() => this._tick(), 100);
    this._tick();
  }

  _tick() {
    const { phase, share, since } = this._images.state;
    const isBusy = this._begun !== null && performance.now() - this._begun > PATIENCE;
    $("progress").hidden = !isBusy;
    if (!isBusy) return;
    if (phase === "sending") {
      $("progress-text").textContent = "Sending the image";
      $("progress-bar").value = share;
      return;
    }
    const spent = performance.now() - since;
    // Towards the end it slows down and never claims to be there.
    $("progress-bar").value = 1 - Math.exp((-2.2 * spent) / Number(preference(MEMORY, FIRST_GUESS)));
    $("progress-text").textContent = `Encoding the image, ${(spent / 1000).toFixed(0)} s`;
  }
}
