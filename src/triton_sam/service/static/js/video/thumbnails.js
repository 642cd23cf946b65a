/** Small pictures along the timeline: as many as have room, loaded two at a time. */
import { element } from "../ui/dom.js";

const PARALLEL = 2;
const WIDTH = 160;
/** CSS pixels; a picture is not narrower. */
const LEAST = 44;

export class Thumbnails {
  /**
   * @param {HTMLElement} place
   * @param {{width: number, height: number, frames: number}} info
   * @param {(frame: number, width: number, signal: AbortSignal) => Promise<Blob>} load
   */
  constructor(place, info, load) {
    Object.assign(this, { _place: place, _info: info, _load: load });
    this._abort = new AbortController();
    /** @type {Map<number, string>} addresses by frame */
    this._known = new Map();
    this._watch = new ResizeObserver(() => this._layOut());
    this._watch.observe(place);
    this._running = 0;
    this._wanted = [];
  }

  close() {
    this._watch.disconnect();
    this._abort.abort();
    for (const address of this._known.values()) URL.revokeObjectURL(address);
  }

  _layOut() {
    const { clientWidth, clientHeight } = this._place;
    const { width, height, frames } = this._info;
    if (!clientWidth || !clientHeight) return;
    const cell = Math.max(LEAST, (clientHeight * width) / height);
    const count = Math.min(frames, Math.max(1, Math.round(clientWidth / cell)));
    if (count === this._place.childElementCount) return;
    const chosen = Array.from({ length: count }, (_, index) => Math.floor(((index + 0.5) * frames) / count));
    this._place.replaceChildren(...chosen.map((frame) => this._cell(frame)));
    this._wanted = chosen.filter((frame) => !this._known.has(frame));
    while (this._running < PARALLEL && this._wanted.length) this._next();
  }

  _cell(frame) {
    const image = element("img", { alt: "", draggable: false, "data-frame": String(frame) });
    if (this._known.has(frame)) image.src = this._known.get(frame);
    else image.hidden = true;
    return element("span", { class: "thumb" }, image);
  }

  async _next() {
    const frame = this._wanted.shift();
    if (frame === undefined) return;
    this._running += 1;
    try {
      const picture = await this._load(frame, WIDTH, this._abort.signal);
      if (this._abort.signal.aborted) return;
      if (!this._known.has(frame)) this._known.set(frame, URL.createObjectURL(picture));
      const image = this._place.querySelector(`[data-frame="${frame}"]`);
      if (image) Object.assign(image, { src: this._known.get(frame), hidden: false });
    } catch {
      // The place stays empty: the frame itself tells what is wrong.
    } finally {
      this._running -= 1;
    }
    this._next();
  }
}
