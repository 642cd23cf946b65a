/** The choice between the model's masks: the best score, or one of three. */
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
    if (active && documents.hasPrompt(active)) this._app.change((document) => documents.choose(document, active.id, pick));
  }

  _show() {
    const active = documents.activeThing(this._app.document);
    $("choice").hidden = !active || !documents.hasPrompt(active);
    if (!active) return;
    this._mark(active.pick);
    const candidates = active.answer?.candidates ?? [];
    this._buttons.slice(1).forEach((button, pick) => {
      const score = candidates.length === COUNT ? candidates[pick].score.toFixed(2) : null;
      button.textContent = score ? `${pick + 1} · ${score}` : `${pick + 1}`;
      button.setAttribute("aria-label", score ? `Mask ${pick + 1}, score ${score}` : `Mask ${pick + 1}`);
    });
  }
}
