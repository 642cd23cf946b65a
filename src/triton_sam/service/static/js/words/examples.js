/**
 * Examples of what is looked for in the open image, and of what is not meant: boxes that the user draws, or those of objects.
 *
 * Events: "examples" when {@link Examples.all} has changed.
 */
import { sameBox } from "../core/box.js";
import * as documents from "../core/document.js";
import { isUntouched } from "../core/found.js";
import { bounds } from "../core/mask.js";
import { drawBox, drawPoint } from "../draw/marks.js";

const COLOURS = ["#d92d20", "#12a150"];

export class Examples extends EventTarget {
  /** @param {import("../app.js").App} app @param {import("../interaction.js").Interaction} interaction */
  constructor(app, interaction) {
    super();
    this._app = app;
    this._interaction = interaction;
    /** @type {import("./prompt.js").Example[]} */
    this.all = [];
    interaction.marks.push((context, view, unit) => this._draw(context, view, unit));
    app.addEventListener("picture", () => this._become([]));
  }

  /**
   * The active object becomes one. A box without more is nothing but the example from then on, and what was found and is not
   * meant is no object.
   * @param {0|1} label
   */
  add(label) {
    const { document } = this._app;
    const active = documents.activeThing(document);
    const box = active && boxOf(active);
    if (!box) {
      this._app.notice("words", `Draw a box around one, or choose an object, and then press ${label ? "Like this" : "Not this"}.`);
      return;
    }
    this._app.notice("words", "");
    const isUsedUp = isBoxOnly(active) || (label === 0 && isUntouched(active));
    if (isUsedUp) this._app.change((before) => documents.remove(before, active.id));
    else this._app.adjust((before) => documents.activate(before, null));
    this._become([...this.all.filter((other) => !sameBox(other.box, box)), { box, label, classId: active.classId ?? null }]);
    this._app.announce(label ? "An example." : "An example of what is not meant.");
  }

  /** @param {number} index */
  remove(index) {
    this._become(this.all.filter((_, other) => other !== index));
  }

  _become(all) {
    if (!all.length && !this.all.length) return;
    this.all = all;
    this._interaction.refreshMarks();
    this.dispatchEvent(new Event("examples"));
  }

  /** With signs, because green and red look alike to some. */
  _draw(context, view, unit) {
    for (const { box, label } of this.all) {
      drawBox(context, view, box, COLOURS[label], unit);
      drawPoint(context, view, { x: box[0] - 0.5, y: box[1] - 0.5, label }, unit);
    }
  }
}

const isBoxOnly = ({ box, points, base, added, removed }) => box !== null && !points.length && !base && !added && !removed;

/** @returns {number[]|null} original pixels */
function boxOf(thing) {
  if (isBoxOnly(thing)) return thing.box;
  const mask = documents.maskOf(thing);
  const all = mask && bounds(mask);
  return all && [all.x, all.y, all.x + all.width, all.y + all.height];
}
