/** What a find needs of the page, with a server that a test answers. */
import { newDocument } from "../../src/triton_sam/service/static/js/core/document.js";
import { addFound } from "../../src/triton_sam/service/static/js/core/found.js";
import { newHistory, step } from "../../src/triton_sam/service/static/js/core/history.js";
import { settled } from "./helpers.js";

export class App {
  constructor(width, height) {
    this.picture = { width, height };
    this.history = newHistory(newDocument());
    this.soFar = null;
    this.notices = [];
    this.asked = [];
    this.isClosed = false;
    /** Why the server cannot be used. */
    this.problem = null;
    this._end = new AbortController();
    this._key = 1;
    this.images = { model: "sam2", ready: async () => `key-${this._key}`, forget: () => (this._key += 1) };
    this.service = { everything: async (body, signal) => this._open(body, signal) };
    this.connection = {
      lost: async () => {},
      persist: (request) => (this.problem ? new Promise(() => {}) : request()),
    };
  }

  get document() {
    return this.history.present;
  }

  get shownDocument() {
    return this.soFar ? addFound(this.document, this.soFar, null) : this.document;
  }

  get questionsEnd() {
    return this._end.signal;
  }

  /** As if another image were opened. */
  forget() {
    this._end.abort(new DOMException("another image", "AbortError"));
    this._end = new AbortController();
  }

  showSoFar(found) {
    this.soFar = found;
  }

  takeFound(found) {
    this.soFar = null;
    this.history = step(this.history, addFound(this.document, found, null));
  }

  notice(kind, text, action = null) {
    this.notices.push({ kind, text, action });
  }

  announce() {}

  // -- the server ----------------------------------------------------------------------------------------------------

  _open(body, signal) {
    this.asked.push(body);
    this.signal = signal;
    this.isClosed = false;
    return new ReadableStream({
      start: (controller) => {
        this._stream = controller;
        signal.addEventListener("abort", () => controller.error(signal.reason), { once: true });
      },
      cancel: () => void (this.isClosed = true),
    });
  }

  /** @param {[string, object]} event name and document */
  send([name, document]) {
    return this.sendText(`event: ${name}\ndata: ${JSON.stringify(document)}\n\n`);
  }

  async sendText(text) {
    this._stream.enqueue(new TextEncoder().encode(text));
    for (let turn = 0; turn < 3; turn += 1) await settled();
  }

  end() {
    this._stream.close();
  }

  fail(error) {
    this._stream.error(error);
  }
}
