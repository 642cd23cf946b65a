/**
 * Changes of prompts and objects: shown at once, and sent one after the other, each as it is when its turn comes. What the
 * server refuses is taken back.
 */
import { NO_PROMPT, bodyOf, isEmpty, withBox, withPoint, withoutPoint } from "./prompts.js";

export class Editing {
  /**
   * @param {import("./film.js").Film} film
   * @param {import("./video_service.js").VideoService} service
   * @param {(error: unknown) => void} onProblem
   * @param {() => void} onBusy a change was asked for while objects are tracked
   */
  constructor(film, service, onProblem, onBusy) {
    this._film = film;
    this._service = service;
    this._onProblem = onProblem;
    this._onBusy = onBusy;
    this._queue = Promise.resolve();
    /** What the server knows, by object and frame. @type {Map<string, import("./prompts.js").Prompt>} */
    this._known = new Map(film.prompts.all.map(([object, frame, prompt]) => [`${object} ${frame}`, prompt]));
    /** Objects that the server has, also those whose prompts were all cleared. */
    this._sent = new Set(film.objects.map(({ id }) => id));
  }

  /** @param {number} frame @param {import("./prompts.js").Point} point of the selected object */
  addPoint(frame, point) {
    return this._change(this._film.selected, frame, (prompt) => withPoint(prompt, point));
  }

  /** @param {number} frame @param {number[]} box of the selected object */
  setBox(frame, box) {
    return this._change(this._film.selected, frame, (prompt) => withBox(prompt, box));
  }

  removePoint(object, frame, index) {
    return this._change(object, frame, (prompt) => withoutPoint(prompt, index));
  }

  /** All prompts of an object in a frame. */
  clear(object, frame) {
    return this._change(object, frame, () => NO_PROMPT);
  }

  /** @returns {Promise<void>} when all that was asked for is answered */
  get settled() {
    return this._queue;
  }

  /** @returns {(() => void)|null} brings its prompts back; null while objects are tracked */
  removeObject(object) {
    const film = this._film;
    if (film.tracking) {
      this._onBusy();
      return null;
    }
    const prompts = film.prompts.framesOf(object).map((frame) => [frame, film.prompts.get(object, frame)]);
    film.remove(object);
    this._then(async () => {
      for (const key of [...this._known.keys()]) if (key.startsWith(`${object} `)) this._known.delete(key);
      if (this._sent.delete(object)) await this._service.removeObject(film.info.id, object);
    });
    return () => {
      for (const [frame, prompt] of prompts) this._change(object, frame, () => prompt);
      film.select(object);
    };
  }

  _change(object, frame, change) {
    const film = this._film;
    if (film.tracking) return this._onBusy();
    film.setPrompt(object, frame, change(film.prompts.get(object, frame)));
    return this._then(() => this._send(object, frame));
  }

  _then(request) {
    this._queue = this._queue.then(request).catch(this._onProblem);
    return this._queue;
  }

  async _send(object, frame) {
    const film = this._film;
    const key = `${object} ${frame}`;
    const before = this._known.get(key) ?? NO_PROMPT;
    const prompt = film.prompts.get(object, frame);
    if (!film.has(object) || prompt === before) return; // removed, or sent with the change before
    try {
      const answer = await this._ask(object, frame, prompt);
      this._sent.add(object);
      if (isEmpty(prompt)) this._known.delete(key);
      else this._known.set(key, prompt);
      if (film.has(object)) film.corrected(object, answer);
    } catch (error) {
      // Later changes build on this one.
      film.setPrompt(object, frame, before);
      if (!this._sent.has(object) && film.has(object)) {
        film.remove(object);
        film.select(object); // its number is free
      }
      throw error;
    }
  }

  _ask(object, frame, prompt) {
    const { id } = this._film.info;
    if (isEmpty(prompt)) return this._service.clearPrompts(id, object, frame);
    return this._service.prompt(id, bodyOf(object, frame, prompt));
  }
}
