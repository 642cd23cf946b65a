/**
 * The mask under the mouse: what a click there would give.
 *
 * Events: "preview" when {@link Hovering.preview} has changed (detail: {moved, serverMs} of the answer, or null).
 */
import * as documents from "./core/document.js";
import { HoverSocket } from "./net/hover_socket.js";

export class Hovering extends EventTarget {
  /**
   * @param {object} parts
   * @param {import("./net/service.js").Service} parts.service
   * @param {import("./net/connection.js").Connection} parts.connection
   * @param {import("./net/image_keys.js").ImageKeys} parts.images
   * @param {import("./net/asker.js").Answers} parts.answers
   * @param {() => documents.Document} parts.currentDocument
   * @param {(answer: import("./net/asker.js").Answer) => void} parts.onAnswer
   */
  constructor({ service, connection, images, answers, currentDocument, onAnswer }) {
    super();
    this._connection = connection;
    this._images = images;
    this._answers = answers;
    this._currentDocument = currentDocument;
    this._onAnswer = onAnswer;
    this._socket = new HoverSocket(
      service,
      connection,
      (question, answer) => this._take(question, answer),
      (question, problem) => this._refused(question, problem),
    );
    this._place = null;
    this._asked = 0;
    this._shown = 0;
    /** @type {{mask: import("./core/mask.js").Mask, colour: string}|null} */
    this.preview = null;
    connection.addEventListener("state", () => this._connect());
    images.addEventListener("state", () => this._connect());
  }

  /**
   * The mouse is here. Nothing happens while the image is being encoded.
   * @param {{x: number, y: number, label: 0|1}} point whole original pixels
   * @param {number} moved when it came here, performance.now()
   */
  at(point, moved) {
    const imageKey = this._images.key;
    const place = `${point.x} ${point.y} ${point.label} ${imageKey}`;
    if (place === this._place) return; // a mouse tells of much less than a pixel
    const thing = documents.hovered(this._currentDocument(), point);
    if (!thing || !imageKey) {
      this.clear();
      return;
    }
    this._place = place;
    const promptKey = documents.promptKey(thing);
    const body = { ...documents.promptOf(thing), image_key: imageKey, model: this._images.model };
    const question = { body, promptKey, imageKey, place, moved, thing, number: ++this._asked };
    const known = this._answers.get(imageKey, promptKey);
    if (known) this._show(question, known);
    else this._socket.ask(question);
  }

  clear() {
    this._place = null;
    this._socket.drop();
    if (!this.preview) return;
    this.preview = null;
    this.dispatchEvent(new CustomEvent("preview", { detail: null }));
  }

  /** The token is another one: the next hover goes over a new socket. */
  reconnect() {
    this._socket.close();
  }

  /** Early, so that the first hover need not wait for it. */
  _connect() {
    if (this._connection.state === "ready" && this._images.key) this._socket.connect();
  }

  _take(question, answer) {
    this._answers.put(question.imageKey, question.promptKey, answer.candidates);
    this._onAnswer(answer);
    // The mouse may have gone on to a place whose answer was known already.
    if (question.number > this._shown) this._show(question, answer.candidates, answer.serverMs);
  }

  _show({ thing, promptKey, moved, number }, candidates, serverMs = 0) {
    this._shown = number;
    const mask = documents.maskOf({ ...thing, answer: { key: promptKey, candidates } });
    this.preview = mask && { mask, colour: thing.colour };
    this.dispatchEvent(new CustomEvent("preview", { detail: { moved, serverMs } }));
  }

  _refused(question, problem) {
    const isStillThere = () => this._place === question.place;
    if (problem.code === "image_expired") {
      this._place = null; // the same place is asked about again when the image is ready
      this._images.forget(question.imageKey);
      this._images.ready().catch(() => {}); // told through its state
    } else if (problem.passes) {
      this._connection.lost(problem).then(() => isStillThere() && this._socket.ask(question));
    }
    // Others are told when the person clicks; a mouse that only passes by shall not raise notices.
  }
}
