/**
 * The application without its controls: one image, its document, and the requests to the server for it.
 *
 * Events: "document" (objects, selection, undo), "picture" (another image), "opening" (detail: whether one is being
 * opened), "latency", "notice" (detail: {kind, text, action}), "announce" (detail: text, for screen readers).
 *
 * @typedef {import("./core/document.js").Document} Document
 */
import * as documents from "./core/document.js";
import * as histories from "./core/history.js";
import { area } from "./core/mask.js";
import { HoverPreview } from "./hover_preview.js";
import { AnswerCache, SegmentQueue } from "./net/segment_queue.js";
import { Connection } from "./net/connection.js";
import { ImageKeys } from "./net/image_keys.js";
import { Problem, sentence } from "./net/problems.js";
import { Service } from "./net/service.js";
import { decode } from "./image_decoding.js";
import { Store, hasWork } from "./work_storage.js";

const SAVE_PAUSE = 150;

export class App extends EventTarget {
  constructor() {
    super();
    this.service = new Service();
    this.connection = new Connection(this.service);
    this.images = new ImageKeys(this.service, this.connection);
    this._segmentQueue = new SegmentQueue(this.service, this.connection, this.images);
    this._answers = new AnswerCache();
    this.hovering = new HoverPreview({
      service: this.service,
      connection: this.connection,
      images: this.images,
      answers: this._answers,
      currentDocument: () => this.document,
      onAnswer: (answer) => this._tell(answer),
    });
    this._store = new Store(() =>
      this._notice("storage", "This browser stores no data for the page: export your work before you leave."));
    this._asking = new Set();
    this._refused = new Set();
    this._abort = new AbortController();
    this._opening = 0;
    this._openAbort = new AbortController();
    this._left = null;
    /** @type {{name: string, file: Blob, width: number, height: number}|null} */
    this.picture = null;
    /** @type {ImageBitmap|null} handed over to the stage */
    this.bitmap = null;
    this.history = histories.newHistory(documents.newDocument());
    this.latency = null;
    /** @type {{max_image_bytes: number, max_image_pixels: number}|null} of the server, if known */
    this.limits = null;
    this._saved = null;
    addEventListener("pagehide", () => this._saveNow());
    document.addEventListener("visibilitychange", () => document.hidden && this._saveNow());
    this.images.addEventListener("state", () => this._imageState());
  }

  /** @returns {Document} */
  get document() {
    return this.history.present;
  }

  // -- pictures ----------------------------------------------------------------------------------------------------

  /** Restores the work of the last session. @returns {Promise<boolean>} whether there was some */
  async restore() {
    const saved = await this._store.open();
    return saved !== null && !this._opening && this._show(saved, () => {});
  }

  /**
   * Opens an image; the work on the previous one is kept and can be reopened.
   * @param {Blob|Promise<Blob>} file
   * @param {string} name
   */
  async open(file, name) {
    await this._store.started;
    let before = null;
    const onSwitch = () => {
      before = this._leaving();
      // If no image is shown, the record may have work that could not be shown.
      if (before || !this.picture) this._store.begin();
    };
    const history = histories.newHistory(documents.newDocument());
    if (!(await this._show({ file, name, history, keys: {} }, onSwitch))) return;
    this._store.savePicture(this._work());
    this._offer(before);
  }

  /** @returns {Promise<import("./work_storage.js").Entry[]>} work on other images, the newest first */
  earlier() {
    return this._store.earlier();
  }

  /** @param {string} record of {@link earlier} */
  async reopen(record) {
    const turn = this._opening;
    const saved = record === this._left?.record ? this._left : await this._store.read(record);
    if (turn !== this._opening) return;
    if (saved) await this._goBack({ ...saved, record });
    else this._notice("kept", "This work is open in another tab, or is not there any more.");
  }

  async _goBack(work) {
    let before = null;
    const onSwitch = () => {
      before = this._leaving();
      this._store.adopt(work.record);
    };
    if (await this._show(work, onSwitch)) this._offer(before);
    else this._offer(work);
  }

  /** @returns {object|null} the current work, if there is any; kept in memory in case the storage fails */
  _leaving() {
    return this.picture && hasWork(this.history) ? { ...this._work(), record: this._store.record } : null;
  }

  /** @param {object|null} work null: keeps the earlier offer */
  _offer(work) {
    if (!work) return;
    if (this._left && this._left.record !== work.record) this._store.release(this._left.record);
    this._left = work;
    this._notice("kept", `Your work on ${work.name} is kept.`, { label: "Go back", run: () => this._goBack(work) });
  }

  /**
   * @param {{file: Blob|Promise<Blob>, name: string, history: object, keys: Record<string, string>}} work
   * @param {() => void} onSwitch called when the previous work has been saved for the last time
   * @returns {Promise<boolean>} whether it is shown
   */
  async _show({ file: coming, name, history, keys }, onSwitch) {
    const turn = ++this._opening;
    const opening = (isOpening) => this.dispatchEvent(new CustomEvent("opening", { detail: isOpening }));
    this._openAbort.abort();
    this._openAbort = new AbortController();
    const { signal } = this._openAbort;
    let shown;
    try {
      opening(true);
      const file = await coming;
      this._checkSize(file.size, "bytes", this.limits?.max_image_bytes);
      shown = await decode(file, (unshown) => this.connection.persist(() => this.service.preview(unshown, signal), signal));
      this._checkSize(shown.bitmap.width * shown.bitmap.height, "pixels", this.limits?.max_image_pixels);
    } catch (error) {
      if (turn === this._opening) this._notice("picture", sentence(error));
      return false;
    } finally {
      if (turn === this._opening) opening(false);
    }
    if (turn !== this._opening) {
      shown.bitmap.close(); // the user has opened another image meanwhile
      return false;
    }
    this._saveNow();
    onSwitch();
    this._forgetQuestions();
    this.history = history;
    this.bitmap = shown.bitmap;
    this.picture = { name, file: shown.file, width: shown.bitmap.width, height: shown.bitmap.height };
    this._saved = history;
    this._clear("picture");
    this._clear("prompt");
    this._emit("picture");
    this._emit("document");
    this.images.open(shown.file, keys);
    this._askForAll();
    return true;
  }

  /** Checked here, before megabytes are sent for nothing. */
  _checkSize(size, unit, most) {
    if (!most || size <= most) return;
    const numbers = `${size.toLocaleString("en")} ${unit} and ${most.toLocaleString("en")} are allowed`;
    throw new Problem("too_large", `the image has ${numbers}: send a smaller one`);
  }

  _forgetQuestions() {
    this._abort.abort(new DOMException("another image or model was chosen", "AbortError"));
    this._abort = new AbortController();
    this._asking.clear();
    this._refused.clear();
    this.hovering.clear();
  }

  _imageState() {
    const { phase, error } = this.images.state;
    if (phase === "refused") this._notice("picture", sentence(error));
    if (phase === "ready") {
      this._clear("picture");
      this._announce("The image is ready.");
      this._saved = null; // the image key is saved too
      this._save();
    }
  }

  // -- the document ------------------------------------------------------------------------------------------------

  /** A change that can be undone. @param {(document: Document) => Document} change */
  change(change) {
    this._become(histories.step(this.history, change(this.document)));
  }

  /** A change without an undo step, such as which object is active. */
  adjust(change) {
    this._become(histories.replace(this.history, change(this.document)));
  }

  undo() {
    this._become(histories.undo(this.history));
  }

  redo() {
    this._become(histories.redo(this.history));
  }

  _become(history) {
    if (history === this.history) return;
    this.history = history;
    this.hovering.clear();
    // After an undo, a prompt that was refused may be sent again.
    for (const key of this._refused) if (!this._isAsked(key)) this._refused.delete(key);
    this._emit("document");
    this._save();
    this._askForAll();
  }

  // -- requests ----------------------------------------------------------------------------------------------------

  _askForAll() {
    for (const thing of this.document.things) if (documents.isWaiting(thing)) this._ask(thing);
  }

  async _ask(thing) {
    const key = documents.promptKey(thing);
    if (this._asking.has(key) || this._refused.has(key)) return;
    const known = this.images.key && this._answers.get(this.images.key, key);
    if (known) {
      this._take(key, known);
      return;
    }
    const { signal } = this._abort;
    const isWanted = () => this._isAsked(key);
    this._asking.add(key);
    try {
      const answer = await this._segmentQueue.ask(documents.promptOf(thing), isWanted, signal);
      if (!answer || signal.aborted) return;
      this._answers.put(answer.imageKey, key, answer.candidates);
      this._tell(answer);
      this._take(key, answer.candidates);
      this._clear("prompt");
    } catch (error) {
      if (signal.aborted || error?.name === "AbortError") return;
      this._refused.add(key);
      this._notice(error === this.images.state.error ? "picture" : "prompt", sentence(error));
    } finally {
      if (!signal.aborted) this._asking.delete(key);
    }
  }

  _isAsked(key) {
    return this.document.things.some((thing) => documents.isWaiting(thing) && documents.promptKey(thing) === key);
  }

  _take(key, candidates) {
    this.history = histories.amend(this.history, documents.answering(key, candidates));
    this._emit("document");
    this._save();
    const thing = this.document.things.find((other) => other.answer?.key === key);
    const mask = thing && documents.maskOf(thing);
    if (!mask) return;
    const share = ((100 * area(mask)) / (mask.width * mask.height)).toFixed(1);
    this._announce(`${thing.name}: ${share} % of the image.`);
  }

  /** Keeps a value for the whole browser. @param {string} name @param {unknown} value that IndexedDB can store */
  saveSetting(name, value) {
    return this._store.saveSetting(name, value);
  }

  /** @param {string} name @returns {Promise<any>} undefined if there is none */
  readSetting(name) {
    return this._store.readSetting(name);
  }

  // -- other -------------------------------------------------------------------------------------------------------

  /** @param {string} model */
  useModel(model) {
    if (model === this.images.model) return;
    this._forgetQuestions();
    this.images.use(model);
    this._askForAll();
  }

  /** @param {string} token */
  unlock(token) {
    this.hovering.reconnect();
    this.connection.unlock(token);
  }

  _tell({ serverMs, roundTripMs }) {
    this.latency = { serverMs, roundTripMs };
    this._emit("latency");
  }

  /** @returns {import("./work_storage.js").Work} */
  _work() {
    const { name, file } = this.picture;
    return { name, file, history: this.history, keys: this.images.known };
  }

  _save() {
    this._saveTimer ??= setTimeout(() => this._saveNow(), SAVE_PAUSE);
  }

  _saveNow() {
    clearTimeout(this._saveTimer);
    this._saveTimer = undefined;
    if (!this.picture || this._saved === this.history) return;
    this._saved = this.history;
    this._store.saveWork(this._work());
  }

  _announce(text) {
    this.dispatchEvent(new CustomEvent("announce", { detail: text }));
  }

  /** @param {{label: string, run: () => void}|null} [action] a button for the user */
  _notice(kind, text, action = null) {
    this.dispatchEvent(new CustomEvent("notice", { detail: { kind, text, action } }));
  }

  _clear(kind) {
    this._notice(kind, "");
  }

  _emit(name) {
    this.dispatchEvent(new Event(name));
  }
}

