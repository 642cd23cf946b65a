/**
 * The hover preview: the mask that a click at the mouse position would give.
 *
 * Events: "preview" when {@link HoverPreview.preview} has changed (detail: {moved, serverMs} of the answer, or null).
 */
import * as documents from "./core/document.js";
import { difference } from "./core/scene.js";
import { HoverSocket } from "./net/hover_socket.js";

export class HoverPreview extends EventTarget {
  /**
   * @param {object} parts
   * @param {import("./net/service.js").Service} parts.service
   * @param {import("./net/connection.js").Connection} parts.connection
   * @param {import("./net/image_keys.js").ImageKeys} parts.images
   * @param {import("./net/segment_queue.js").AnswerCache} parts.answers
   * @param {() => documents.Document} parts.currentDocument
   * @param {() => string|null} [parts.classColour] the colour of new objects, if a class is chosen
   * @param {(answer: import("./net/segment_queue.js").Answer) => void} parts.onAnswer
   */
  constructor({ service, connection, images, answers, currentDocument, classColour = () => null, onAnswer }) {
    super();
    this._connection = connection;
    this._images = images;
    this._answers = answers;
    this._currentDocument = currentDocument;
    this._classColour = classColour;
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
    /**
     * What a click would add to the object that is shown and remove from it; removed is null for a new object.
     * @type {{added: import("./core/mask.js").Mask, removed: import("./core/mask.js").Mask|null, colour: string}|null}
     */
    this.preview = null;
    connection.addEventListener("state", () => this._connect());
    images.addEventListener("state", () => this._connect());
  }

  /**
   * Updates the preview for a mouse position. Does nothing while the image is being encoded.
   * @param {{x: number, y: number, label: 0|1}} point whole original pixels
   * @param {number} moved when the mouse moved there, performance.now()
   */
  at(point, moved) {
    const imageKey = this._images.key;
    const place = `${point.x} ${point.y} ${point.label} ${imageKey}`;
    if (place === this._place) return; // mouse events are much finer than a pixel
    this._preview(documents.hovered(this._currentDocument(), point), place, moved);
  }

  /** Updates the preview for the active object with another prompt, as while a point is dragged. */
  ofThing(thing, moved) {
    const place = `${documents.promptKey(thing)} ${this._images.key}`;
    if (place !== this._place) this._preview(thing, place, moved);
  }

  _preview(thing, place, moved) {
    const imageKey = this._images.key;
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

  /** After a change of the token: the next hover uses a new WebSocket. */
  reconnect() {
    this._socket.close();
  }

  /** Connects early, so that the first hover does not wait. */
  _connect() {
    if (this._connection.state === "ready" && this._images.key) this._socket.connect();
  }

  _take(question, answer) {
    this._answers.put(question.imageKey, question.promptKey, answer.candidates);
    this._onAnswer(answer);
    // The mouse may have moved to a position whose mask was already cached, or another image may be open.
    const isWanted = question.number > this._shown && question.imageKey === this._images.key;
    if (isWanted) this._show(question, answer.candidates, answer.serverMs);
  }

  _show({ thing, promptKey, moved, number }, candidates, serverMs = 0) {
    this._shown = number;
    const mask = documents.maskOf({ ...thing, answer: { key: promptKey, candidates } });
    const shown = documents.activeThing(this._currentDocument());
    const before = shown?.visible && shown.id === thing.id ? documents.maskOf(shown) : null;
    const colour = (shown?.id === thing.id ? null : this._classColour()) ?? thing.colour;
    this.preview = mask && { ...difference(mask, before), colour };
    this.dispatchEvent(new CustomEvent("preview", { detail: { moved, serverMs } }));
  }

  _refused(question, problem) {
    const isStillThere = () => this._place === question.place;
    if (problem.code === "image_expired") {
      this._place = null; // the same position is requested again when the image is ready
      this._images.forget(question.imageKey);
      this._images.ready().catch(() => {}); // reported through its state
    } else if (problem.passes) {
      this._connection.lost(problem).then(() => isStillThere() && this._socket.ask(question));
    }
    // Other errors are shown when the user clicks; hovering alone must not show notices.
  }
}
