/** The service's routes, one method each. URLs are relative to the page, which may be served under a path prefix. */
import { Problem, problemOf } from "./problems.js";

const HOVER_PROTOCOL = "triton-sam";
const PLACE = "triton-sam.place";
/** Timeouts in milliseconds: a network may lose a request without an error. */
const HEALTH_TIMEOUT = 5_000;
const TIMEOUT = 60_000;
const ENCODE_TIMEOUT = 600_000;

export class Service {
  constructor(base = document.baseURI) {
    this._base = new URL(".", base);
    /** Sent with every request; empty if the server needs none. */
    this.token = "";
    /** With several servers, their proxy sends all requests with the same value to the same server. */
    this.place = placeOfTab();
  }

  /** @returns {string} */
  address(path) {
    return new URL(path, this._base).href;
  }

  /** @returns {Promise<{id: string, name: string, title: string, licence: string, default: boolean}[]>} */
  models = () => this._json("models");

  /** @returns {Promise<{name: string, title: string, credit: string, address: string}[]>} */
  samples = () => this._json("samples");

  /** @param {string} address of a sample @returns {Promise<Blob>} */
  sample = (address) => this._fetch(address);

  /** @returns {Promise<{max_image_bytes: number, max_image_pixels: number}>} */
  limits = () => this._json("v1/limits");

  /** @returns {Promise<boolean>} whether masks are served now */
  async isReady() {
    try {
      const signal = AbortSignal.timeout(HEALTH_TIMEOUT);
      return (await fetch(this.address("health"), { cache: "no-store", signal })).ok;
    } catch {
      return false;
    }
  }

  /** @param {object} body @param {AbortSignal} [signal] @returns {Promise<object>} result_json */
  segment(body, signal) {
    const headers = { "Content-Type": "application/json" };
    return this._json("v1/segment", { method: "POST", body: JSON.stringify(body), headers, signal });
  }

  /** @returns {Promise<import("../chat_session.js").ChatModel[]>} vision-language models; often none */
  chatModels = async () => (await this._json("v1/models")).data;

  /**
   * @param {Blob} body JSON @param {AbortSignal} signal
   * @returns {Promise<ReadableStream<Uint8Array>>} server-sent events; the first may take minutes while the model loads
   */
  chat(body, signal) {
    return this._events("v1/chat/completions", body, signal);
  }

  /**
   * @param {object} body @param {AbortSignal} signal whoever aborts it ends the search on the server
   * @returns {Promise<ReadableStream<Uint8Array>>} server-sent events; see net/finding.js
   */
  everything(body, signal) {
    return this._events("v1/everything", JSON.stringify(body), signal, { Accept: "text/event-stream" });
  }

  async _events(path, body, signal, accept = {}) {
    const headers = { "Content-Type": "application/json", ...accept, ...this._ownHeaders() };
    let answer;
    try {
      answer = await fetch(this.address(path), { method: "POST", body, headers, signal });
      if (answer.ok) return answer.body;
      const problem = problemOf(answer.status, await answer.text());
      problem.retryAfter = Number(answer.headers.get("Retry-After")) || 0;
      throw problem;
    } catch (error) {
      signal.throwIfAborted();
      throw error instanceof Problem ? error : new Problem("unreachable", "The server does not respond.");
    }
  }

  // For routes of parts of the page that are loaded when they are needed.

  /** @param {string} path @param {object} [options] of fetch, and `patience` in milliseconds @returns {Promise<any>} */
  json = (path, options) => this._json(path, options);

  /** @param {string} path @param {object} [options] @returns {Promise<Blob>} */
  blob = (path, options) => this._fetch(path, options);

  /**
   * @param {string} path @param {object} body JSON @param {AbortSignal} signal @param {string} accepted type
   * @returns {Promise<ReadableStream<Uint8Array>>}
   */
  stream = (path, body, signal, accepted) => this._events(path, JSON.stringify(body), signal, { Accept: accepted });

  /** @param {Blob} file that the browser cannot show @returns {Promise<Blob>} the image as JPEG */
  async preview(file, signal) {
    return this._fetch("v1/preview", { method: "POST", body: form({ image: file }), signal });
  }

  /**
   * @param {Blob} file
   * @returns {Promise<import("../science/expand.js").Description>} its pages and channels, without its pixels
   */
  describe = (file, signal) =>
    this._json("v1/describe", { method: "POST", body: form({ image: file }), signal, patience: ENCODE_TIMEOUT });

  /**
   * @param {Blob} file @param {number} first page, from 0 @param {number} count of pages
   * @returns {Promise<{header: string|null, body: Blob}>} the samples, and X-Planes; see science/planes.js
   */
  async planes(file, first, count, signal) {
    const options = { method: "POST", body: form({ image: file }), signal, patience: ENCODE_TIMEOUT };
    const { answer, body } = await this._answer(`v1/planes?first=${first}&count=${count}`, options);
    return { header: answer.headers.get("X-Planes"), body };
  }

  /**
   * Uploads an image for encoding.
   * @param {Blob} file
   * @param {string} model
   * @param {(share: number) => void} onSent  the uploaded fraction, 0 to 1
   * @param {AbortSignal} signal
   * @returns {Promise<{image_key: string, width: number, height: number}>}
   */
  encode(file, model, onSent, signal) {
    return this.upload("v1/images", { image: file, model }, onSent, signal);
  }

  /**
   * @param {string} path
   * @param {Record<string, string|Blob>} fields of the form
   * @param {(share: number) => void} onSent  the uploaded fraction, 0 to 1
   * @param {AbortSignal} signal
   * @param {number} [patience] milliseconds in all
   * @returns {Promise<any>} the answer's document
   */
  upload(path, fields, onSent, signal, patience = ENCODE_TIMEOUT) {
    // Not fetch: it does not report upload progress.
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("POST", this.address(path));
      for (const [name, value] of Object.entries(this._ownHeaders())) request.setRequestHeader(name, value);
      request.upload.onprogress = ({ loaded, total }) => onSent(total ? loaded / total : 0);
      request.upload.onload = () => onSent(1);
      request.onload = () => {
        const answer = request.status === 200 || request.status === 201 ? parsed(request.responseText) : null;
        if (answer) resolve(answer);
        else reject(problemOf(request.status, request.responseText));
      };
      request.onerror = request.ontimeout = () => reject(new Problem("unreachable"));
      request.timeout = patience;
      request.onabort = () => reject(signal.reason);
      signal.addEventListener("abort", () => request.abort(), { once: true });
      request.send(form(fields));
    });
  }

  /** @returns {WebSocket} */
  hoverSocket() {
    const address = new URL("v1/hover", this._base);
    address.protocol = address.protocol.replace("http", "ws");
    address.searchParams.set("image", this.place); // a browser cannot set headers of a WebSocket
    return new WebSocket(address, this.token ? [HOVER_PROTOCOL, `bearer64.${base64url(this.token)}`] : [HOVER_PROTOCOL]);
  }

  _ownHeaders() {
    return { "X-Image-Key": this.place, ...(this.token && { Authorization: `Bearer ${this.token}` }) };
  }

  async _json(path, options) {
    return JSON.parse(await (await this._fetch(path, options)).text());
  }

  /** @returns {Promise<Blob>} the complete response; an incomplete one is an error */
  _fetch = async (path, options) => (await this._answer(path, options)).body;

  async _answer(path, { headers = {}, signal, patience = TIMEOUT, ...options } = {}) {
    const timeout = AbortSignal.timeout(patience);
    let answer;
    let body;
    try {
      answer = await fetch(this.address(path), {
        ...options,
        headers: { ...headers, ...this._ownHeaders() },
        signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
      });
      body = await answer.blob();
    } catch {
      signal?.throwIfAborted();
      throw new Problem("unreachable");
    }
    if (!answer.ok) throw problemOf(answer.status, await body.text());
    return { answer, body };
  }
}

/** @returns {object|null} null if it is not JSON, such as a proxy's error page */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Subprotocol names allow only some characters; tokens may have others. */
const base64url = (text) => btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

/**
 * One value for all images of a tab, because its WebSocket outlives them. It survives a reload, which reuses the image keys.
 * @returns {string}
 */
function placeOfTab() {
  const fresh = crypto.getRandomValues(new Uint32Array(4)).join("-");
  try {
    const kept = sessionStorage.getItem(PLACE) ?? fresh;
    sessionStorage.setItem(PLACE, kept);
    return kept;
  } catch {
    return fresh; // storage is disabled
  }
}

function form(fields) {
  const data = new FormData();
  for (const [name, value] of Object.entries(fields)) data.append(name, value);
  return data;
}
