/**
 * Finding by words and examples in the open image: one question at a time. What is found becomes part of the document in one
 * undo step, with the words as class.
 *
 * Events: "state" when {@link WordsSession.words} has changed.
 */
import { isUntouched, withFilter } from "../core/found.js";
import { unlessAborted } from "../net/finding.js";
import { Problem, sentence } from "../net/problems.js";
import { conceptsIn, sentencesFor, withInstances } from "./instances.js";
import { SHOWN_SCORE, promptOf, wordsOf } from "./prompt.js";

const KIND = "words";
/** Milliseconds: on a CPU a large model reads words for seconds, and others may be before. */
const PATIENCE = 300_000;
const KNOWN = "What was found is there already.";

export class WordsSession extends EventTarget {
  /** @param {import("../app.js").App} app @param {{all: import("./prompt.js").Example[]}} examples */
  constructor(app, examples) {
    super();
    this._app = app;
    this._examples = examples;
    this._abort = null;
    /** @type {string[]|null} what is looked for now; null: nothing */
    this.words = null;
  }

  get isBusy() {
    return this.words !== null;
  }

  /** @param {string} text words, several of them with commas @returns {Promise<void>} when it is over, however it ends */
  async find(text) {
    const app = this._app;
    if (this.isBusy || !app.picture) return;
    const abort = new AbortController();
    const { questionsEnd } = app;
    const signal = AbortSignal.any([abort.signal, questionsEnd]);
    app.notice(KIND, "");
    try {
      const words = wordsOf(text);
      const prompt = promptOf(words, this._examples.all);
      this._abort = abort;
      this._become(words);
      const result = await this._answer(prompt, signal);
      signal.throwIfAborted();
      this._take(understood(() => conceptsIn(result, words, app.picture)));
    } catch (error) {
      if (abort.signal.aborted && !questionsEnd.aborted) app.notice(KIND, "Cancelled. Nothing was changed.");
      else if (!signal.aborted && error?.name !== "AbortError") app.notice(KIND, sentence(error));
    }
    this._become(null);
  }

  cancel() {
    this._abort?.abort(new DOMException("the user has cancelled the search", "AbortError"));
  }

  async _answer(prompt, signal) {
    const { service, connection, images } = this._app;
    const headers = { "Content-Type": "application/json" };
    for (;;) {
      const key = await unlessAborted(images.ready(), signal);
      const body = JSON.stringify({ ...prompt, image_key: key, model: images.model });
      const ask = () => service.json("v1/segment", { method: "POST", body, headers, signal, patience: PATIENCE });
      try {
        return await unlessAborted(connection.persist(ask, signal), signal);
      } catch (error) {
        signal.throwIfAborted();
        if (error?.code !== "image_expired") throw error;
        images.forget(key);
      }
    }
  }

  _take(concepts) {
    const app = this._app;
    const named = concepts.filter(({ words, instances }) => words && instances.length);
    const classes = app.classes.merge(named.map(({ words }) => ({ name: words })));
    const classOf = (words) => (words ? (classes.get(words) ?? null) : this._classOfExamples());
    const filter = this._filter();
    app.amend((document) => withFilter(document, filter));
    const { made } = app.document;
    app.change((document) => withInstances(document, concepts, classOf));
    const { missing, counted } = sentencesFor(concepts, filter.score);
    const isAnyFound = concepts.some(({ instances }) => instances.length);
    const isAllKnown = isAnyFound && app.document.made === made;
    app.notice(KIND, [missing, !isAnyFound && this._about(), isAllKnown && KNOWN].filter(Boolean).join(" "));
    app.announce(counted);
  }

  /** That of the objects which are examples. */
  _classOfExamples() {
    const { classes } = this._app;
    return classes.of(this._examples.all.find(({ label }) => label)?.classId) ?? classes.active;
  }

  /** What the model is: it may know few words. */
  _about() {
    const { models, images } = this._app;
    const { title } = models.find(({ id }) => id === images.model) ?? {};
    return title ? `${images.model} is ${title}.` : "";
  }

  /** What the user has chosen for words before stays. */
  _filter() {
    const { things, filter } = this._app.document;
    const isByWords = things.some((thing) => isUntouched(thing) && thing.found.words !== undefined);
    return isByWords && filter ? filter : { score: SHOWN_SCORE, size: 0 };
  }

  _become(words) {
    if (words === this.words) return;
    this.words = words;
    this.dispatchEvent(new Event("state"));
  }
}

function understood(read) {
  try {
    return read();
  } catch {
    throw new Problem("unreadable", "The server's masks cannot be read.");
  }
}
