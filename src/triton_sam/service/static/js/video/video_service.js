/** The service's routes for videos, one method each. */
import { documentsOf } from "./lines.js";

/** Milliseconds: the server reads a whole video, or writes one. */
const LONG = 1_800_000;
const JSON_LINES = "application/x-ndjson";

/**
 * @typedef {object} VideoInfo  as the service tells it
 * @property {string} id @property {string} model @property {string} name
 * @property {number} width @property {number} height original pixels, as the video is shown
 * @property {number} frames @property {number|null} fps @property {"t"|"z"} axis
 * @property {{low: number, high: number, note: string}|null} contrast @property {string[]} notes
 */

export class VideoService {
  /**
   * @param {import("../net/service.js").Service} service
   * @param {import("../net/connection.js").Connection} connection
   */
  constructor(service, connection) {
    this._service = service;
    this._connection = connection;
  }

  /**
   * @param {File} file
   * @param {{model?: string, axis?: "t"|"z", at?: string}} options  at: where other dimensions of a stack are held, "c=1"
   * @param {(share: number) => void} onSent @param {AbortSignal} signal
   * @returns {Promise<VideoInfo>} when the server has read it
   */
  open(file, options, onSent, signal) {
    return this._service.upload("v1/videos", { ...options, file }, onSent, signal, LONG);
  }

  /** @returns {Promise<VideoInfo & {objects: object[], tracked: [number, number][], presence: object}>} */
  info = (id) => this._ask(`v1/videos/${id}`);

  /** @param {number} [width] at most; the whole picture if left out @returns {Promise<Blob>} a JPEG */
  frame(id, frame, signal, width) {
    const path = `v1/videos/${id}/frames/${frame}${width ? `?width=${width}` : ""}`;
    return this._connection.persist(() => this._service.blob(path, { signal }), signal);
  }

  /** @param {object} body see bodyOf @returns {Promise<Answer>} */
  prompt = (id, body) => this._ask(`v1/videos/${id}/prompts`, posted(body));

  /** @returns {Promise<Answer>} */
  clearPrompts = (id, object, frame) =>
    this._ask(`v1/videos/${id}/prompts?frame_index=${frame}&object_id=${object}`, { method: "DELETE" });

  removeObject = (id, object) => this._do(`v1/videos/${id}/objects/${object}`, "DELETE");

  /** @returns {Promise<Answer>} what the server keeps of a frame */
  masks = (id, frame, signal) => this._ask(`v1/videos/${id}/masks?frame_index=${frame}`, { signal });

  /**
   * @param {{start_frame_index?: number, direction: string}} body @param {AbortSignal} signal hanging up cancels it
   * @returns {AsyncGenerator<Answer|{done?: true, cancelled?: true, frames: number}>}
   */
  async *propagate(id, body, signal) {
    const stream = await this._service.stream(`v1/videos/${id}/propagate`, body, signal, JSON_LINES);
    yield* documentsOf(stream, signal);
  }

  cancel = (id) => this._do(`v1/videos/${id}/cancel`, "POST");

  close = (id) => this._do(`v1/videos/${id}`, "DELETE");

  /** @param {"mp4"|"png"|"coco"|"youtube_vis"|"tiff"} format @returns {Promise<Blob>} */
  exported = (id, format, signal) => this._service.blob(`v1/videos/${id}/export?format=${format}`, { signal, patience: LONG });

  _ask(path, options = {}) {
    return this._connection.persist(() => this._service.json(path, options), options.signal);
  }

  _do = (path, method) => this._service.blob(path, { method });
}

/** @typedef {{frame_index: number, results: import("./masks.js").Row[]}} Answer */

const posted = (body) => ({ method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
