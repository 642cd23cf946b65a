/**
 * The open video: sending it, finding it again after a reload, closing it. One at a time.
 *
 * Events: "opening" (see {@link VideoSession.opening}), "film" (another one, or none).
 * @typedef {{name: string, share: number, isRead: boolean}} Opening  share: sent so far, 0 to 1; isRead: the server reads it
 */
import { Problem } from "../net/problems.js";
import { Film } from "./film.js";
import { NO_MODEL, videoModels } from "./models.js";
import { placesIn } from "./places.js";
import { bodyOf } from "./prompts.js";
import { askPlaces } from "./question.js";
import { videoSentence } from "./sentences.js";
import { keptVideo, keepVideo } from "./kept.js";
import { VideoService } from "./video_service.js";

const KIND = "video";

export class VideoSession extends EventTarget {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    super();
    this._app = app;
    this.service = new VideoService(app.service, app.connection);
    /** @type {Film|null} */
    this.film = null;
    /** @type {Opening|null} */
    this.opening = null;
    this._abort = null;
  }

  /** @returns {import("./models.js").Model[]} that take videos, the one to use first */
  get models() {
    return videoModels(this._app.models);
  }

  /**
   * @param {File} file @param {{model?: string, axis?: "t"|"z", at?: string}} [options]
   * @throws {Problem} at once, if it cannot be opened now; what the server says comes as a notice
   */
  begin(file, options = {}) {
    if (this.opening) throw new Problem("refused", `one video at a time: drop ${file.name} again when ${this.opening.name} is open`);
    const model = options.model ?? this.models[0]?.id;
    if (!model) throw new Problem("refused", NO_MODEL);
    checkSize(file, this._app.limits?.video_upload_bytes);
    return this.mayClose() ? this._open(file, { ...options, model }) : null;
  }

  /** @returns {boolean} whether there is nothing to lose, or the user wants that */
  mayClose() {
    const { film } = this;
    return !film?.objects.length || confirm(`Close ${film.info.name}? Its prompts and masks are lost; export them first.`);
  }

  /** @param {string} model of {@link models}; the same video and prompts, without results */
  async useModel(model) {
    const { film } = this;
    if (film?.file) await this._open(film.file, { ...film.options, model }, film.prompts);
  }

  /** The server has forgotten the video: it is sent again, with its prompts. */
  again() {
    return this.useModel(this.film?.info.model);
  }

  /** Stops sending. */
  cancel() {
    this._abort?.abort(new DOMException("the user opens it no more", "AbortError"));
  }

  /** Looks for the video that was open before a reload. */
  async restore() {
    const id = keptVideo();
    if (!id) return;
    try {
      const info = await this.service.info(id);
      const film = new Film(info, null);
      film.restore(info);
      this._show(film);
    } catch {
      keepVideo(null); // it was closed, or nobody used it for too long
    }
  }

  /** Also on the server. */
  close() {
    const { film } = this;
    if (!film) return;
    this._show(null);
    this.service.close(film.info.id).catch(() => {}); // else the server closes it by itself later
  }

  async _open(file, options, prompts = null) {
    const abort = new AbortController();
    this._abort = abort;
    const tell = (share) => this._become({ name: file.name, share, isRead: share >= 1 });
    const sent = Object.fromEntries(Object.entries(options).filter(([, value]) => value));
    this._app.notice(KIND, "");
    tell(0);
    let film = null;
    try {
      film = new Film(await this.service.open(file, sent, tell, abort.signal), file, options);
      if (prompts) await this._repeat(film, prompts, abort.signal);
      this.close();
      this._show(film);
    } catch (error) {
      if (film) this.service.close(film.info.id).catch(() => {}); // nobody would use it
      if (!abort.signal.aborted) this._refused(error, file, options);
    }
    this._abort = null;
    this._become(null);
  }

  /** A stack with channels: the user is asked for one. */
  _refused(error, file, options) {
    const places = placesIn(error?.detail ?? "");
    const choose = async () => {
      const at = await askPlaces(file.name, places);
      if (at) await this._open(file, { ...options, at });
    };
    this._app.notice(KIND, videoSentence(error), places.length ? { label: "Choose", run: choose } : null);
  }

  async _repeat(film, prompts, signal) {
    for (const [object, frame, prompt] of prompts.all) {
      signal.throwIfAborted();
      film.setPrompt(object, frame, prompt);
      film.corrected(object, await this.service.prompt(film.info.id, bodyOf(object, frame, prompt)));
    }
    film.select(film.objects.at(-1)?.id ?? 1);
  }

  _show(film) {
    this.film = film;
    keepVideo(film?.info.id ?? null);
    this.dispatchEvent(new Event("film"));
  }

  _become(opening) {
    this.opening = opening;
    this.dispatchEvent(new Event("opening"));
  }
}

/** Before gigabytes are sent for nothing: a browser does not see an answer that comes before all is sent. */
function checkSize({ size }, most) {
  if (!most || size <= most) return;
  throw new Problem("refused", `this video has ${size.toLocaleString("en")} bytes and ${most.toLocaleString("en")} are allowed: cut it, or scale it down`);
}
