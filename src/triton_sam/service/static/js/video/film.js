/**
 * One open video with all that is known about it: its objects, their prompts, masks and tracks. No requests are made here.
 *
 * Events: "objects" (the list, the selection, colours, prompts), "results" (masks and tracks), "tracking" (how far it is).
 * @typedef {{id: number, isVisible: boolean}} FilmObject
 * @typedef {{direction: string, start: number, done: number, of: number, frame: number}} Tracking
 */
import { MaskStore, hasPixels } from "./masks.js";
import { Prompts } from "./prompts.js";
import { Tracks } from "./tracks.js";
import { wordOf } from "./words.js";

export class Film extends EventTarget {
  /**
   * @param {import("./video_service.js").VideoInfo} info
   * @param {File|null} file null: opened again after a reload
   * @param {{axis?: "t"|"z", at?: string}} [options] with which it was opened
   */
  constructor(info, file, options = {}) {
    super();
    this.info = info;
    this.file = file;
    this.options = options;
    this.word = wordOf(info.axis);
    this.prompts = new Prompts();
    this.masks = new MaskStore();
    this.tracks = new Tracks(info.frames);
    /** @type {FilmObject[]} in the order of their numbers */
    this.objects = [];
    /** @type {number} the object that clicks are about; the next new one if it is not in the list */
    this.selected = 1;
    /** @type {Tracking|null} */
    this.tracking = null;
    /** Whether its workplace is gone: answers that come yet are for nobody. */
    this.isClosed = false;
    this._highest = 0;
    /** Frames with corrections whose consequences were not tracked yet. */
    this._corrected = new Set();
  }

  // -- objects -----------------------------------------------------------------------------------------------------

  has(object) {
    return this.objects.some(({ id }) => id === object);
  }

  /** Clicks are about an object that is not there yet; its number is used once only. */
  selectNew() {
    this.select(this._highest + 1);
  }

  select(object) {
    this.selected = object;
    this._tell("objects");
  }

  toggle(object) {
    this.objects = this.objects.map((one) => (one.id === object ? { ...one, isVisible: !one.isVisible } : one));
    this._tell("objects");
    this._tell("results");
  }

  remove(object) {
    this.objects = this.objects.filter(({ id }) => id !== object);
    this.prompts.remove(object);
    this.masks.removeObject(object);
    this.tracks.remove(object);
    if (this.selected === object) this.selected = this.objects.at(-1)?.id ?? this._highest + 1;
    this._settle();
    this._tell("objects");
    this._tell("results");
  }

  /** @param {number} object @param {number} frame @param {import("./prompts.js").Prompt} prompt */
  setPrompt(object, frame, prompt) {
    this.prompts.set(object, frame, prompt);
    if (!this.has(object) && this.prompts.framesOf(object).length) this._add(object);
    this._tell("objects");
  }

  _add(object) {
    this._highest = Math.max(this._highest, object);
    this.objects = [...this.objects, { id: object, isVisible: true }].sort((one, other) => one.id - other.id);
  }

  // -- results -----------------------------------------------------------------------------------------------------

  /** An answer to a changed prompt. @param {number} object @param {import("./video_service.js").Answer} answer */
  corrected(object, { frame_index: frame, results }) {
    const told = new Set([object, ...results.map((row) => row.object_id)]);
    this._take(frame, [...this.masks.rows(frame).filter((row) => !told.has(row.object_id)), ...results]);
    if (!results.some((row) => row.object_id === object)) this.tracks.forget(object, frame);
    this.tracks.outdate(object, frame, new Set(this.prompts.framesOf(object)));
    this._corrected.add(frame);
    this._settle();
    this._tell("results");
  }

  /** A frame of a propagation. @param {import("./video_service.js").Answer} answer */
  tracked({ frame_index: frame, results }) {
    this._take(frame, results);
    if (this.tracking) {
      this.tracks.passed(frame, this.tracking.start);
      this.tracking = { ...this.tracking, frame, done: this.tracking.done + 1 };
    }
    this._tell("results");
  }

  /** @param {Tracking|null} tracking */
  setTracking(tracking) {
    this.tracking = tracking;
    if (!tracking) this._settle();
    this._tell("tracking");
  }

  /** Masks that were dropped, from the server again. @param {import("./video_service.js").Answer} answer */
  refill({ frame_index: frame, results }) {
    this.masks.put(frame, results.filter(({ object_id: object }) => this.has(object)));
    this._tell("results");
  }

  _take(frame, rows) {
    const known = rows.filter(({ object_id: object }) => this.has(object));
    this.masks.put(frame, known);
    for (const { object_id: object, mask } of known) this.tracks.set(object, frame, hasPixels(mask));
  }

  /** @returns {{start: number, direction: "forward"|"backward"|"both"}|null} what brings all results up to date */
  get remedy() {
    const extent = this._corrected.size && this.tracks.staleExtent;
    if (!extent) return null;
    const corrected = [...this._corrected];
    const first = Math.min(...corrected);
    if (extent.first > first) return { start: first, direction: "forward" };
    const last = Math.max(...corrected);
    return extent.last < last ? { start: last, direction: "backward" } : { start: first, direction: "both" };
  }

  _settle() {
    if (!this.tracks.staleExtent) this._corrected.clear();
  }

  /** What the server keeps. @param {object} info of GET /v1/videos/{id} */
  restore({ objects, tracked, presence }) {
    for (const { object_id: object } of objects) this._add(object);
    this.prompts = Prompts.of(objects);
    this.tracks.restore(objects.map(({ object_id: object }) => object), tracked, presence, this.prompts.frames[0] ?? 0);
    this.selected = this.objects.at(-1)?.id ?? 1;
  }

  _tell(name) {
    if (!this.isClosed) this.dispatchEvent(new Event(name));
  }
}
