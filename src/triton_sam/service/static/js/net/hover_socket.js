/**
 * The mask under the mouse. One question is on its way at a time; while it is, only the newest place of the mouse is
 * remembered, and asked about next. So an answer is never older than one decode, and nothing piles up anywhere.
 */
import { candidatesOf } from "./asker.js";
import { Problem } from "./problems.js";

/** A server that has gone silent without closing, as behind a proxy. */
const PATIENCE = 30_000;
const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 20_000;

export class HoverSocket {
  /**
   * @param {import("./service.js").Service} service
   * @param {import("./connection.js").Connection} connection
   * @param {(question: object, answer: import("./asker.js").Answer) => void} onAnswer
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

  /** @param {{body: object}} question body: a message of /v1/hover without its id; the rest comes back with the answer */
  ask(question) {
    this._next = question;
    this._send();
  }

  /** Forgets what was not asked yet, and does not want the answer that is on its way. */
  drop() {
    this._next = null;
    if (this._asked) this._asked.isDropped = true;
  }

  /** Opens the socket early, so that the first hover need not wait for it. */
  connect() {
    if (this._socket || this._isPausing || ["away", "locked"].includes(this._connection.state)) return;
    const socket = this._service.hoverSocket();
    this._socket = socket;
    socket.onopen = () => this._send();
    socket.onmessage = ({ data }) => this._take(JSON.parse(data));
    socket.onclose = () => this._closed(socket);
  }

  /** For a new token: the old socket would go on, and a new page would not. */
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
    this._asked.timer = setTimeout(() => this._socket?.close(), PATIENCE);
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
        // Of several servers, the socket may be left at one that only stood in for another: a new one goes where clicks go.
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
    // What was asked is asked again, unless the mouse has moved on meanwhile.
    const asked = this._finish();
    if (asked && !asked.isDropped) this._next ??= asked.question;
    // A browser does not tell why: a plain request finds out whether the server is gone or wants a token.
    await this._connection.persist(() => this._service.models()).catch(() => {});
    // Where sockets never work, as behind some proxies, clicks do: the page goes on without asking all the time.
    const pause = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** this._failures++);
    setTimeout(() => {
      this._isPausing = false;
      this.connect();
    }, pause);
  }
}
