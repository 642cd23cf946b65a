/**
 * The contrast of the open image while it is being chosen: a quick look at once, and the file for the model when the user is
 * done.
 *
 * Events: "view" when {@link Contrast.view} or the histograms have changed.
 */
import { sentence } from "../net/problems.js";
import { parseHeader } from "./planes.js";

/** Milliseconds without a change, after which the model is given the image: each time costs an encode. */
const SETTLE = 400;

export class Contrast extends EventTarget {
  /**
   * @param {import("../app.js").App} app
   * @param {import("../draw/stage.js").Stage} stage
   * @param {import("./render_worker.js").RenderWorker} renderer that holds the samples of the open image
   */
  constructor(app, stage, renderer) {
    super();
    Object.assign(this, { _app: app, _stage: stage, _renderer: renderer });
    /** @type {import("./view.js").View|null} as it is chosen now; null for an ordinary picture whose samples are not read yet */
    this.view = null;
    /** @type {Uint32Array[]|null} of each channel; null until the samples are read */
    this.histograms = null;
    this._waiting = null;
    /** Counts the images that were opened. */
    this._turn = 0;
    this._forget();
    app.addEventListener("picture", () => {
      this._finishNow(); // the worker still has the samples of the image that is left
      this._forget();
    });
    app.addEventListener("rendering", () => this._rendered());
  }

  /** Whether the open image has more than a browser shows. */
  get isScientific() {
    return Boolean(this._app.picture?.view);
  }

  get hasPicture() {
    return Boolean(this._app.picture);
  }

  _forget() {
    this._turn += 1;
    this.view = this._app.picture?.view ?? null;
    this.histograms = null;
    this._loading = null;
    this._isLooking = false;
    this._changed();
  }

  _rendered() {
    this._stage.replace(this._app.bitmap);
    this._app.bitmap = null; // the stage owns it now
    const { view } = this._app.picture;
    if (view === this.view || this._waiting) return;
    this.view = view; // another page's window, which was given to all pages
    this._changed();
  }

  /** Reads the samples, once for each image. */
  load() {
    this._loading ??= this._load(this._app.picture);
    return this._loading;
  }

  async _load(picture) {
    const turn = this._turn;
    try {
      const view = picture.view ?? (await this._ofOrdinary(picture));
      if (turn !== this._turn) return;
      const histograms = await this._renderer.load(view);
      if (turn !== this._turn) return;
      this.view ??= view;
      this.histograms = histograms;
      this._changed();
    } catch (error) {
      if (turn !== this._turn) return;
      this._loading = null;
      this._tell(sentence(error));
    }
  }

  /** The samples of a picture with 8 bits: as the browser reads it, or the server if it does not. */
  async _ofOrdinary({ name, file }) {
    const origin = { origin: name, stack: "", page: 1, pages: 1, notFinite: 0 };
    const namesOf = ({ channels }) => (channels < 3 ? null : ["red", "green", "blue", "alpha"].slice(0, channels));
    try {
      const { samples, ...size } = await this._renderer.split(file);
      const about = { ...size, ...origin, names: namesOf(size), dtype: "uint8", range: { low: 0, high: 255 } };
      return (await this._renderer.develop(samples, about, false)).view;
    } catch {
      const { header, body } = await this._app.connection.persist(() => this._app.service.planes(file, 0, 1));
      const about = parseHeader(header);
      return (await this._renderer.develop(body, { ...about, names: namesOf(about), ...origin }, false)).view;
    }
  }

  /** Shows a view at once, on the screen only. @param {import("./view.js").View} view of the same samples */
  preview(view) {
    this._wait(null);
    this.view = view;
    this._changed();
    this._look();
  }

  /** Gives the model what is shown, soon. */
  settle() {
    this._wait({ turn: this._turn, record: this._app.project.list.current, view: this.view });
    this._timer = setTimeout(() => this._finishNow(), SETTLE);
  }

  _wait(change) {
    clearTimeout(this._timer);
    this._waiting = change;
  }

  _finishNow() {
    const change = this._waiting;
    this._wait(null);
    if (change) this._finish(change);
  }

  /** One quick look at a time; the newest view wins. */
  async _look() {
    if (this._isLooking) return;
    const turn = this._turn;
    this._isLooking = true;
    let { view } = this;
    for (let isNew = true; isNew; ) {
      const bitmap = await this._renderer.quick(view).catch(() => null);
      if (turn !== this._turn) return void bitmap?.close();
      if (bitmap) this._stage.replace(bitmap);
      isNew = view !== this.view;
      view = this.view;
    }
    this._isLooking = false;
  }

  async _finish({ turn, record, view }) {
    try {
      const { bitmap, file } = await this._renderer.finish(view);
      if (view !== this.view && turn === this._turn) return void bitmap.close(); // moved again meanwhile
      // If another image is open by now, this one is stored all the same.
      this._app.project.changePicture(record, { bitmap, file, view });
    } catch (error) {
      if (turn === this._turn) this._tell(sentence(error));
    }
  }

  _tell(text) {
    this._app.notice("contrast", text);
  }

  _changed() {
    this.dispatchEvent(new Event("view"));
  }
}
