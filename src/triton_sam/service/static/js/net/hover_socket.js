/**
 * The WebSocket for hover masks. One request is in flight at a time; meanwhile only the newest mouse position is kept, and
 * sent next. So a response is never older than one decode, and no queue builds up.
 */
import { candidatesOf } from "./segment_queue.js";
import { Problem } from "./problems.js";

/** Timeout for a server that stops responding without closing, as behind a proxy; milliseconds. */
const TIMEOUT = 30_000;
const FIRST_PAUSE = 250;
const MAX_PAUSE = 20_000;

export class HoverSocket {
  /**
   * @param {import("./service.js").Service} service
   * @param {import("./connection.js").Connection} connection
   * @param {(question: object, answer: import("./segment_queue.js").Answer) => void} onAnswer
   * @param {(question: object, problem: Problem) => void} onRefusal
   */
  constructor(service, connection, onAnswer, onRefusal) {
    this._service = service;
    this._connection = connection;
    this._onAnswer = onAnswer;
    this._onRefusal = onRefusal;
    this._socket = null;
    this._isPausing = false;
    this._asked = null;
    this._next = null;
    this._number = 0;
    this._failures = 0;
  }

  /** @param {{body: object}} question body: a message of /v1/hover without its id; the rest is passed to the callbacks */
  ask(question) {
    this._next = question;
    this._send();
  }

  /** Drops the waiting request, and ignores the response of the one in flight. */
  drop() {
    this._next = null;
    if (this._asked) this._asked.isDropped = true;
  }

  /** Opens the WebSocket early, so that the first hover does not wait for it. */
  connect() {
    if (this._socket || this._isPausing || ["away", "locked"].includes(this._connection.state)) return;
    const socket = this._service.hoverSocket();
    this._socket = socket;
    socket.onopen = () => this._send();
    socket.onmessage = ({ data }) => this._take(JSON.parse(data));
    socket.onclose = () => this._closed(socket);
  }

  /** For a new token: the next request opens a new WebSocket with it. */
  close() {
    this._socket?.close();
  }

  _send() {
    if (this._asked || !this._next) return;
    if (this._socket?.readyState !== WebSocket.OPEN) {
      this.connect();
      return;
    }
    const question = this._next;
    this._next = null;
    this._asked = { id: ++this._number, question, sent: performance.now(), isDropped: false };
    this._asked.timer = setTimeout(() => this._socket?.close(), TIMEOUT);
    this._socket.send(JSON.stringify({ ...question.body, id: this._asked.id }));
  }

  _take({ id, result, error }) {
    this._failures = 0;
    if (id !== this._asked?.id) return;
    const asked = this._finish();
    if (result) this._connection.found();
    if (!asked.isDropped) {
      if (result) {
        const roundTripMs = performance.now() - asked.sent;
        this._onAnswer(asked.question, { candidates: candidatesOf(result), serverMs: result.timings_ms.total, roundTripMs });
      } else if (error) {
        this._onRefusal(asked.question, new Problem(error.code, error.message));
        // With several servers, this WebSocket may be on a fallback server: a new one goes to the server of the clicks.
        if (error.code === "image_expired") this._socket?.close();
      }
    }
    this._send();
  }

  _finish() {
    const asked = this._asked;
    this._asked = null;
    clearTimeout(asked?.timer);
    return asked;
  }

  async _closed(socket) {
    if (socket !== this._socket) return;
    this._socket = null;
    this._isPausing = true;
    // The request in flight is repeated, unless the mouse has moved meanwhile.
    const asked = this._finish();
    if (asked && !asked.isDropped) this._next ??= asked.question;
    // A browser does not report why: a plain request finds out whether the server is down or wants a token.
    await this._connection.persist(() => this._service.models()).catch(() => {});
    // Behind some proxies WebSockets never work, but clicks do: retry with a growing pause.
    const pause = Math.min(MAX_PAUSE, FIRST_PAUSE * 2 ** this._failures++);
    setTimeout(() => {
      this._isPausing = false;
      this.connect();
    }, pause);
  }
}
