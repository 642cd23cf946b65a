/**
 * The chat about the open image with a vision-language model: one question at a time, with streaming answers.
 *
 * Events: "turns" when {@link ChatSession.turns} or one of them has changed.
 * @typedef {{id: string, title: string, chats: boolean, grounds: boolean, tasks?: string[]}} ChatModel
 *   grounds: its answers have boxes of phrases; tasks: what it can be asked for beside words, such as "ground"
 */
import { messagesOf, newTurn } from "./core/chat.js";
import { sound } from "./core/grounding.js";
import { chatBody, pieces } from "./net/chat.js";
import { Problem } from "./net/problems.js";

export class ChatSession extends EventTarget {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    super();
    this._app = app;
    this._abort = null;
    /** @type {ChatModel|null} the selected model */
    this.model = null;
    /** @type {import("./core/chat.js").Turn[]} about this image, the newest last */
    this.turns = [];
    /** Whether an answer is in progress. */
    this.isBusy = false;
    app.addEventListener("picture", () => this.clear());
  }

  /** @param {string} text @returns {boolean} whether it was sent; false while another one is in progress */
  ask(text) {
    const question = text.trim();
    if (!question || this.isBusy || !this.model || !this._app.picture) return false;
    const earlier = this.turns;
    const turn = newTurn(question, this.model, performance.now());
    this.turns = [...earlier, turn];
    this._answer(turn, earlier);
    return true;
  }

  /** Repeats the newest question, whose answer failed. */
  retry() {
    const turn = this.turns.at(-1);
    if (this.isBusy || turn?.state !== "failed") return;
    this.turns = this.turns.slice(0, -1);
    this.ask(turn.question);
  }

  /** Stops the answer; the text so far is kept. */
  stop() {
    this._abort?.abort();
  }

  /** Clears the conversation. */
  clear() {
    this.stop();
    this._abort = null;
    this.isBusy = false;
    this.turns = [];
    this._tell();
  }

  async _answer(turn, earlier) {
    const abort = new AbortController();
    this._abort = abort;
    this.isBusy = true;
    this._tell();
    try {
      const { id, chats } = turn.model;
      const body = await chatBody(id, messagesOf(earlier, turn.question, chats), this._app.picture.file);
      await this._stream(turn, body, abort.signal);
      turn.state = "done";
    } catch (error) {
      turn.state = abort.signal.aborted ? "stopped" : "failed";
      turn.problem = error;
    }
    turn.took = performance.now() - turn.since;
    if (this._abort !== abort) return; // another image was opened, with another conversation
    this._abort = null;
    this.isBusy = false;
    this._tell();
  }

  async _stream(turn, body, signal) {
    const { service, connection } = this._app;
    for (;;) {
      try {
        signal.throwIfAborted();
        for await (const piece of pieces(service, body, signal)) this._take(turn, piece);
        connection.found();
        return;
      } catch (error) {
        if (signal.aborted || !(error instanceof Problem)) throw error;
        if (error.code === "unreachable") connection.lost(error);
        if (error.code !== "not_authorised") throw error;
        await connection.lost(error);
      }
    }
  }

  _take(turn, { text, entities, finish, tokens }) {
    turn.answer += text;
    if (entities) turn.entities = sound(entities);
    turn.finish = finish ?? turn.finish;
    turn.tokens = tokens || turn.tokens;
    if (text) this._tell();
  }

  _tell() {
    this.dispatchEvent(new Event("turns"));
  }
}
