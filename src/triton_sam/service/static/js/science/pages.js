/**
 * The pages of one file in the list of images.
 *
 * Events: "pages" when {@link Pages.state} or {@link Pages.working} has changed.
 */
import { sentence } from "../net/problems.js";
import { levelsOf, sampleOf, valueOf } from "./planes.js";
import { windowOf } from "./window.js";

export class Pages extends EventTarget {
  /**
   * @param {import("../app.js").App} app @param {import("./render_worker.js").RenderWorker} renderer
   * @param {(file: Blob) => Promise<ImageBitmap>} [decode] for tests
   */
  constructor(app, renderer, decode = (file) => createImageBitmap(file)) {
    super();
    this._decode = decode;
    this._app = app;
    this._renderer = renderer;
    /** What is under way, for the user; empty if nothing. */
    this.working = "";
    for (const event of ["picture", "items"]) app.addEventListener(event, () => this._changed());
  }

  /** @returns {{page: number, count: number}} the open page, from 1, and how many pages the file has */
  get state() {
    const view = this._app.picture?.view;
    return view ? { page: view.page, count: view.pages } : { page: 1, count: 1 };
  }

  /** @param {number} page from 1 */
  open(page) {
    const item = this._items(this._app.picture.view).find((other) => other.page === page);
    if (item) this._app.openRecord(item.record);
    else this._changed(); // it was removed from the list
  }

  /** Gives all pages the channels and the window of one, in the values of the file. @param {import("./view.js").View} chosen */
  async useForAll(chosen) {
    const others = this._items(chosen).filter(({ page }) => page !== chosen.page);
    const { project } = this._app;
    try {
      for (const [index, { record }] of others.entries()) {
        this._work(`Page ${index + 1} of ${others.length}`);
        const picture = await project.store.readPicture(record);
        if (!picture?.view) continue;
        const view = asIn(picture.view, chosen);
        const file = await this._renderer.render(view);
        // The user may have opened the page meanwhile.
        const bitmap = record === project.list.current ? await this._decode(file) : null;
        project.changePicture(record, { file, view, bitmap });
      }
    } catch (error) {
      this._app.notice("contrast", sentence(error));
    }
    this._work("");
  }

  _items({ stack }) {
    return this._app.items.filter((item) => item.stack === stack);
  }

  _work(text) {
    this.working = text;
    this._changed();
  }

  _changed() {
    this.dispatchEvent(new Event("pages"));
  }
}

/** @param {import("./view.js").View} view @param {import("./view.js").View} chosen @returns {import("./view.js").View} */
export function asIn(view, { look, windows, isLinked, range, dtype }) {
  const levels = levelsOf(view.dtype);
  // Samples of a file with floats mean other values in another request for its pages.
  const moved = (sample) => sampleOf(valueOf(sample, range, levelsOf(dtype)), view.range, levels);
  return { ...view, look, isLinked, windows: windows.map(({ low, high }) => windowOf(moved(low), moved(high), levels)) };
}
