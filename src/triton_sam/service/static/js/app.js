/**
 * The application without its controls: the open image, its document, and the requests to the server for it. The list of
 * images and the storage are the project's.
 *
 * Events: "document" (objects, selection, undo), "picture" (another image, or none), "rendering" (the same image looks
 * otherwise), "items" (the list of images), "opening" (detail: whether one is being opened), "adding" (detail: {done, total},
 * or null), "finding" (what a find has found so far), "classes", "models" (the served ones), "settings" (read from a project file), "latency", "notice" (detail: {kind, text, action}), "announce" (detail:
 * text, for screen readers).
 *
 * @typedef {import("./core/document.js").Document} Document
 */
import * as documents from "./core/document.js";
import { withClassOfNew } from "./core/document_classes.js";
import { addFound } from "./core/found.js";
import * as histories from "./core/history.js";
import { area } from "./core/mask.js";
import { HoverPreview } from "./hover_preview.js";
import { AnswerCache, SegmentQueue } from "./net/segment_queue.js";
import { Connection } from "./net/connection.js";
import { EncodeAhead } from "./net/encode_ahead.js";
import { ImageKeys } from "./net/image_keys.js";
import { sentence } from "./net/problems.js";
import { Service } from "./net/service.js";
import { PictureOpening } from "./picture_opening.js";
import { FileAdding } from "./project/adding.js";
import { Project } from "./project/project.js";
import { Thumbnails } from "./project/thumbnails.js";
import { ProjectClasses } from "./project_classes.js";

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
      classColour: () => this.classes.active?.colour ?? null,
      onAnswer: (answer) => this._tell(answer),
    });
    this._asking = new Set();
    this._refused = new Set();
    this._abort = new AbortController();
    /** @type {{name: string, file: Blob, width: number, height: number, view: object|null}|null} */
    this.picture = null;
    /** @type {ImageBitmap|null} handed over to the stage */
    this.bitmap = null;
    this.history = histories.newHistory(documents.newDocument());
    this.latency = null;
    /** @type {import("./core/find_stream.js").Found[]|null} of the find that is under way: shown, but not in the document yet */
    this.soFar = null;
    /** @type {{max_image_bytes: number, max_image_pixels: number}|null} of the server, if known */
    this.limits = null;
    /** @type {object[]} the served ones, once they are known */
    this.models = [];
    this.classes = new ProjectClasses(this);
    this._startProject();
    this.images.addEventListener("state", () => this._imageState());
  }

  _startProject() {
    const tell = (isOpening) => this.dispatchEvent(new CustomEvent("opening", { detail: isOpening }));
    const { service, connection } = this;
    this.project = new Project(this, new PictureOpening({ service, connection, limits: () => this.limits, tell }));
    this.thumbnails = new Thumbnails(this.project);
    this._adding = new FileAdding(this);
    this._ahead = new EncodeAhead(service, this.images, this.project);
    this.project.addEventListener("items", () => this._emit("items"));
  }

  /** @returns {Document} */
  get document() {
    return this.history.present;
  }

  /** @returns {Document} with what a find has found so far */
  get shownDocument() {
    return this.soFar ? addFound(this.document, this.soFar, this.classes.active) : this.document;
  }

  /** @returns {AbortSignal} aborted when another image or model is chosen */
  get questionsEnd() {
    return this._abort.signal;
  }

  /** @returns {import("./project/items.js").Item[]} the images of the list, in order */
  get items() {
    return this.project.list.all;
  }

  // -- pictures ----------------------------------------------------------------------------------------------------

  /** Restores the work of the last session. @returns {Promise<boolean>} whether there was some */
  async restore() {
    const [isShown] = await Promise.all([this.project.restore(), this.classes.load()]);
    return isShown;
  }

  /**
   * Opens one image; the work on the previous one is kept in the list.
   * @param {Blob|Promise<Blob>} file
   * @param {string} name
   * @param {{view?: object|null, isSample?: boolean}} [about]
   */
  async open(file, name, about) {
    try {
      await this.project.open(file, name, about);
    } catch (error) {
      this.notice("picture", sentence(error));
    }
  }

  /** Adds dropped or chosen files: images, and what importers understand. @param {File[]} files */
  addFiles(files) {
    return this._adding.add(files);
  }

  /** @param {string} record of {@link items} @returns {Promise<boolean>} whether it is shown */
  openRecord(record) {
    return this.project.openRecord(record);
  }

  /**
   * Changes the document of any image of the list, open or not; an undo step there.
   * @param {string} record @param {(document: Document) => Document} change
   * @param {string} [label] what has happened, for screen readers
   * @returns {Promise<boolean>} false if the image cannot be read
   */
  async editDocument(record, change, label = "") {
    const isEdited = await this.project.editDocument(record, change);
    if (isEdited && label) this.announce(label);
    return isEdited;
  }

  /** Called by the project. @param {{item: object, file: Blob, bitmap: ImageBitmap, view: object|null, history: object}} shown */
  show({ item, file, bitmap, view, history }) {
    this._forgetQuestions();
    this.history = history;
    this.bitmap = bitmap;
    this.picture = { name: item.name, file, width: bitmap.width, height: bitmap.height, view };
    this._clear("picture");
    this._clear("prompt");
    this._emit("picture");
    this._emit("document");
    this.images.open(file, item.keys, this._ahead.take(item.record));
    this._askForAll();
  }

  /** The open image has another picture of the same size. Called by the project. */
  redraw({ file, view, bitmap }) {
    this._forgetQuestions();
    this.bitmap = bitmap;
    this.picture = { ...this.picture, file, view };
    this._emit("rendering");
    this.images.open(file);
    this._askForAll();
  }

  /** No image is open any more. Called by the project. */
  close() {
    this._forgetQuestions();
    this.history = histories.newHistory(documents.newDocument());
    this.bitmap = this.picture = null;
    this._ahead.take(null);
    this.images.open(null);
    this._emit("picture");
    this._emit("document");
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
    if (phase === "refused") this.notice("picture", sentence(error));
    if (phase === "ready") {
      this._clear("picture");
      this.announce("The image is ready.");
    }
  }

  // -- the document ------------------------------------------------------------------------------------------------

  /** A change that can be undone. @param {(document: Document) => Document} change */
  change(change) {
    this._become(histories.step(this.history, this.classed(change(this.document))));
  }

  /** @param {Document} after a change of the present document @returns {Document} its new objects have the chosen class */
  classed(after) {
    return withClassOfNew(this.document, after, this.classes.active);
  }

  /** A change of past and future documents too, such as the colours of classes. */
  amend(change) {
    this._become(histories.amend(this.history, change));
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
    this._askForAll();
  }

  /** @param {import("./core/find_stream.js").Found[]|null} found null: no find is under way */
  showSoFar(found) {
    this.soFar = found;
    this._emit("finding");
  }

  /** Objects of a find, all in one undo step. @param {import("./core/find_stream.js").Found[]} found */
  takeFound(found) {
    this.soFar = null;
    this.change((document) => addFound(document, found, this.classes.active));
    this._emit("finding");
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
      this.notice(error === this.images.state.error ? "picture" : "prompt", sentence(error));
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
    const thing = this.document.things.find((other) => other.answer?.key === key);
    const mask = thing && documents.maskOf(thing);
    if (!mask) return;
    const share = ((100 * area(mask)) / (mask.width * mask.height)).toFixed(1);
    this.announce(`${thing.name}: ${share} % of the image.`);
  }

  /** Keeps a value for the whole browser. @param {string} name @param {unknown} value that IndexedDB can store */
  saveSetting(name, value) {
    return this.project.store.saveSetting(name, value);
  }

  /** @param {string} name @returns {Promise<any>} undefined if there is none */
  readSetting(name) {
    return this.project.store.readSetting(name);
  }

  // -- other -------------------------------------------------------------------------------------------------------

  /** @param {object[]} models that are served, as the service tells them */
  useModels(models) {
    this.models = models;
    this._emit("models");
  }

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

  /** @param {string} text for screen readers */
  announce(text) {
    this.dispatchEvent(new CustomEvent("announce", { detail: text }));
  }

  /** @param {{label: string, run: () => void}|null} [action] a button for the user */
  notice(kind, text, action = null) {
    this.dispatchEvent(new CustomEvent("notice", { detail: { kind, text, action } }));
  }

  _clear(kind) {
    this.notice(kind, "");
  }

  _emit(name) {
    this.dispatchEvent(new Event(name));
  }
}

