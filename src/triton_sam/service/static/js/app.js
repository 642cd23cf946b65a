/**
 * The page without its controls: one picture, its document, and the questions that go to the server for it.
 *
 * Events: "document" (objects, selection, undo), "picture" (another image), "preview", "latency",
 * "notice" (detail: {kind, text}), "announce" (detail: text, for screen readers).
 *
 * @typedef {import("./core/document.js").Document} Document
 */
import * as documents from "./core/document.js";
import * as histories from "./core/history.js";
import { area } from "./core/mask.js";
import { Answers, Asker } from "./net/asker.js";
import { Connection } from "./net/connection.js";
import { HoverSocket } from "./net/hover_socket.js";
import { ImageKeys } from "./net/image_keys.js";
import { sentence } from "./net/problems.js";
import { Service } from "./net/service.js";
import { decode } from "./picture_file.js";
import { Store } from "./store.js";

const SAVE_PAUSE = 150;

export class App extends EventTarget {
  constructor() {
    super();
    this.service = new Service();
    this.connection = new Connection(this.service);
    this.images = new ImageKeys(this.service, this.connection);
    this._asker = new Asker(this.service, this.connection, this.images);
    this._answers = new Answers();
    this._hover = new HoverSocket(
      this.service,
      this.connection,
      (question, answer) => this._hovered(question, answer),
      (question, problem) => this._hoverRefused(question, problem),
    );
    this._store = new Store(() =>
      this._notice("storage", "This browser keeps nothing for the page: export your work before you leave."));
    this._asking = new Set();
    this._refused = new Set();
    this._abort = new AbortController();
    this._opening = 0;
    /** @type {{name: string, file: Blob, width: number, height: number}|null} */
    this.picture = null;
    /** @type {ImageBitmap|null} handed over to whoever draws it */
    this.bitmap = null;
    this.history = histories.newHistory(documents.newDocument());
    /** @type {{mask: import("./core/mask.js").Mask, colour: string, x: number, y: number}|null} */
    this.preview = null;
    this._hoverPlace = null;
    this.latency = null;
    addEventListener("pagehide", () => this._saveNow());
    document.addEventListener("visibilitychange", () => document.hidden && this._saveNow());
    this.images.addEventListener("state", () => this._imageState());
  }

  /** @returns {Document} */
  get document() {
    return this.history.present;
  }

  // -- pictures ----------------------------------------------------------------------------------------------------

  /** Takes up what was left by the last visit. @returns {Promise<boolean>} whether there was something */
  async restore() {
    const saved = await this._store.open();
    if (!saved || this._opening) return false;
    return this._show(saved.name, saved.file, saved.history, saved.keys);
  }

  /** @param {Blob} file @param {string} name */
  async open(file, name) {
    const history = histories.newHistory(documents.newDocument());
    if (!(await this._show(name, file, history, {}))) return;
    this._store.savePicture({ name, file }, this._work());
  }

  async _show(name, file, history, keys) {
    const turn = ++this._opening;
    let bitmap;
    try {
      bitmap = await decode(file, (unshown) => this.connection.persist(() => this.service.preview(unshown)));
    } catch (error) {
      if (turn === this._opening) this._notice("picture", sentence(error));
      return false;
    }
    if (turn !== this._opening) {
      bitmap.close(); // the person has opened another one meanwhile
      return false;
    }
    this._abort.abort(new DOMException("another image was opened", "AbortError"));
    this._abort = new AbortController();
    this._hover.drop();
    this._asking.clear();
    this._refused.clear();
    this.preview = null;
    this.history = history;
    this.bitmap = bitmap;
    this.picture = { name, file, width: bitmap.width, height: bitmap.height };
    this._clear("picture");
    this._emit("picture");
    this._emit("document");
    this.images.open(file, keys);
    this._askForAll();
    return true;
  }

  _imageState() {
    const { phase, error } = this.images.state;
    if (phase === "refused") this._notice("picture", sentence(error));
    if (phase === "ready") {
      this._clear("picture");
      this._hover.connect();
      this._save();
    }
  }

  // -- the document ------------------------------------------------------------------------------------------------

  /** One step that can be undone. @param {(document: Document) => Document} change */
  change(change) {
    this._become(histories.step(this.history, change(this.document)));
  }

  /** A change that is no step of its own, such as which object is active. */
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
    this.clearPreview();
    this._emit("document");
    this._save();
    this._askForAll();
  }

  // -- questions ---------------------------------------------------------------------------------------------------

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
      const answer = await this._asker.ask(documents.promptOf(thing), isWanted, signal);
      if (!answer || signal.aborted) return;
      this._answers.put(answer.imageKey, key, answer.candidates);
      this._tell(answer);
      this._take(key, answer.candidates);
      this._clear("prompt");
    } catch (error) {
      if (signal.aborted || error?.name === "AbortError") return;
      this._refused.add(key);
      if (error !== this.images.state.error) this._notice("prompt", sentence(error));
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
    this._announce(key);
  }

  _announce(key) {
    const thing = this.document.things.find((other) => other.answer?.key === key);
    const mask = thing && documents.maskOf(thing);
    if (!mask) return;
    const share = ((100 * area(mask)) / (mask.width * mask.height)).toFixed(1);
    this.dispatchEvent(new CustomEvent("announce", { detail: `${thing.name}: ${share} % of the image.` }));
  }

  // -- the mouse ---------------------------------------------------------------------------------------------------

  /**
   * Shows what a click here would give. Nothing happens while the image is being encoded.
   * @param {{x: number, y: number, label: 0|1}} point whole original pixels
   * @param {number} moved when the mouse was there, performance.now()
   */
  hover(point, moved) {
    const imageKey = this.images.key;
    const place = `${point.x} ${point.y} ${point.label} ${imageKey}`;
    if (place === this._hoverPlace) return; // a mouse tells of much less than a pixel
    const thing = documents.hovered(this.document, point);
    if (!thing || !imageKey) {
      this.clearPreview();
      return;
    }
    this._hoverPlace = place;
    const promptKey = documents.promptKey(thing);
    const question = {
      body: { ...documents.promptOf(thing), image_key: imageKey, model: this.images.model },
      promptKey, imageKey, point, moved, thing, document: this.document,
    };
    const known = this._answers.get(imageKey, promptKey);
    if (known) this._preview(question, known);
    else this._hover.ask(question);
  }

  clearPreview() {
    this._hoverPlace = null;
    this._hover.drop();
    if (!this.preview) return;
    this.preview = null;
    this.dispatchEvent(new CustomEvent("preview", { detail: null }));
  }

  _hovered(question, answer) {
    this._answers.put(question.imageKey, question.promptKey, answer.candidates);
    this._tell(answer);
    if (question.document === this.document) this._preview(question, answer.candidates, answer.serverMs);
  }

  _preview({ thing, point, moved }, candidates, serverMs = 0) {
    const best = documents.chosen(candidates, thing.pick);
    this.preview = best && { mask: best.mask, colour: thing.colour, x: point.x, y: point.y };
    this.dispatchEvent(new CustomEvent("preview", { detail: { moved, serverMs } }));
  }

  _hoverRefused(question, problem) {
    if (problem.code === "image_expired") {
      this.images.forget(question.imageKey);
      this.images.ready().catch(() => {}); // told through its state
    } else if (problem.passes) {
      this.connection.lost(problem).then(() => this._hover.ask(question));
    }
    // Others are told when the person clicks; a mouse that only passes by shall not raise notices.
  }

  // -- small things ------------------------------------------------------------------------------------------------

  /** @param {string} model */
  useModel(model) {
    this.clearPreview();
    this._refused.clear();
    this.images.use(model);
    this._askForAll();
  }

  /** @param {string} token */
  unlock(token) {
    this._hover.close();
    this.connection.unlock(token);
  }

  _tell({ serverMs, roundTripMs }) {
    this.latency = { serverMs, roundTripMs };
    this._emit("latency");
  }

  _work() {
    return { history: this.history, keys: this.images.known };
  }

  _save() {
    this._saveTimer ??= setTimeout(() => this._saveNow(), SAVE_PAUSE);
  }

  _saveNow() {
    clearTimeout(this._saveTimer);
    this._saveTimer = undefined;
    if (this.picture) this._store.saveWork(this._work());
  }

  _notice(kind, text) {
    this.dispatchEvent(new CustomEvent("notice", { detail: { kind, text } }));
  }

  _clear(kind) {
    this._notice(kind, "");
  }

  _emit(name) {
    this.dispatchEvent(new Event(name));
  }
}

