/** The choice between the model's masks: the best score, or one of three. Only shown if the model returned several. */
import * as documents from "../core/document.js";
import { $, element, radioGroup } from "./dom.js";

const COUNT = 3;

export class MaskChoice {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this._app = app;
    const group = $("choice-buttons");
    group.setAttribute("role", "radiogroup");
    group.setAttribute("aria-label", "Which mask");
    group.append(
      element("button", { type: "button", role: "radio", "data-pick": "null" }, "Auto"),
      ...Array.from({ length: COUNT }, (_, pick) =>
        element("button", { type: "button", role: "radio", "data-pick": String(pick) }, String(pick + 1))),
    );
    this._buttons = [...group.children];
    this._mark = radioGroup(group, "pick", (pick) => this.pick(pick === "null" ? null : Number(pick)));
    app.addEventListener("document", () => this._show());
  }

  /** @param {number|null} pick */
  pick(pick) {
    const active = documents.activeThing(this._app.document);
    if (active && hasChoice(active)) this._app.change((document) => documents.choose(document, active.id, pick));
  }

  /** The next choice: the best score, mask 1, 2, 3, and again. */
  pickNext() {
    const active = documents.activeThing(this._app.document);
    if (!active || !hasChoice(active)) return;
    const next = active.pick === null ? 0 : active.pick + 1;
    this.pick(next < COUNT ? next : null);
  }

  _show() {
    const active = documents.activeThing(this._app.document);
    const isShown = active !== null && hasChoice(active);
    $("choice").hidden = !isShown;
    if (!isShown) return;
    this._mark(active.pick);
    const { candidates } = active.answer;
    this._buttons.slice(1).forEach((button, pick) => {
      const score = candidates[pick].score.toFixed(2);
      button.textContent = `${pick + 1} · ${score}`;
      button.setAttribute("aria-label", `Mask ${pick + 1}, score ${score}`);
    });
  }
}

/** Further points leave no doubt which mask is meant, and the model returns one. */
const hasChoice = (thing) => documents.hasPrompt(thing) && thing.answer?.candidates.length === COUNT;
