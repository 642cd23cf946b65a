/** The list of objects, topmost first. */
import * as documents from "../core/document.js";
import { area } from "../core/mask.js";
import { $, element, iconButton } from "./dom.js";

/** Scores below this are marked as uncertain. */
const LOW_SCORE = 0.5;

export class ObjectList {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this._app = app;
    this._list = $("objects");
    this._rows = new Map();
    app.addEventListener("document", () => this._show());
  }

  _show() {
    const { things, activeId } = this._app.document;
    const order = [...things].reverse();
    for (const [id, row] of this._rows) {
      if (!things.some((thing) => thing.id === id)) {
        row.node.remove();
        this._rows.delete(id);
      }
    }
    order.forEach((thing, place) => {
      if (!this._rows.has(thing.id)) this._rows.set(thing.id, this._row(thing.id));
      const row = this._rows.get(thing.id);
      // Moving a node removes its focus, so only nodes in the wrong position are moved.
      if (this._list.children[place] !== row.node) this._list.insertBefore(row.node, this._list.children[place] ?? null);
      row.show(thing, thing.id === activeId, place, order.length);
    });
    $("no-objects").hidden = things.length > 0 || !this._app.picture;
    $("count-badge").hidden = things.length === 0;
    $("count-badge").textContent = String(things.length);
    $("show-panel").setAttribute("aria-label", things.length ? `Objects and export: ${things.length}` : "Objects and export");
  }

  _row(id) {
    const app = this._app;
    const change = (action, ...rest) => app.change((document) => action(document, id, ...rest));
    const activate = () => app.adjust((document) => documents.activate(document, id));
    const swatch = element("input", { type: "color", class: "swatch" });
    swatch.onchange = () => change(documents.describe, { colour: swatch.value });
    const name = element("input", { type: "text", class: "name", maxLength: 80, spellcheck: false });
    name.onpointerdown = activate; // not on focus: Tab must not change the selection
    name.onchange = () => {
      name.value = name.value.trim() || name.defaultValue;
      change(documents.describe, { name: name.value });
    };
    name.onkeydown = ({ key }) => {
      if (key === "Escape") name.value = name.defaultValue;
      else if (key === "Enter") activate();
      else return;
      $("surface").focus(); // the blur event applies the typed name
    };
    const eye = iconButton("eye", "Hide", () => {
      const { visible } = app.document.things.find((thing) => thing.id === id);
      change(documents.describe, { visible: !visible });
    });
    const bin = iconButton("delete", "Delete", () => {
      change(documents.remove);
      $("surface").focus();
    });
    const shift = (by) => {
      change(documents.move, by);
      const [wanted, other] = by > 0 ? [up, down] : [down, up];
      (wanted.disabled ? other : wanted).focus(); // the row was moved, which removes the focus
    };
    const up = iconButton("up", "Bring forward", () => shift(1));
    const down = iconButton("down", "Send back", () => shift(-1));
    const facts = element("span", { class: "facts" });
    const line = element("div", { class: "object-line" }, swatch, name, eye, bin);
    const more = element("div", { class: "more" }, facts, up, down);
    const node = element("li", { class: "object", "data-id": id }, line, more);
    node.onclick = ({ target }) => target.closest("button, input") || activate();

    const show = (thing, isActive, place, count) => {
      node.classList.toggle("active", isActive);
      node.classList.toggle("hidden", !thing.visible);
      if (isActive) node.setAttribute("aria-current", "true");
      else node.removeAttribute("aria-current");
      if (document.activeElement !== name) name.value = thing.name;
      name.defaultValue = thing.name;
      name.setAttribute("aria-label", `Name of ${thing.name}`);
      swatch.value = thing.colour;
      swatch.setAttribute("aria-label", `Colour of ${thing.name}`);
      rename(eye, `${thing.visible ? "Hide" : "Show"} ${thing.name}`);
      eye.querySelector("use").setAttribute("href", thing.visible ? "#i-eye" : "#i-hidden");
      rename(bin, `Delete ${thing.name}`);
      rename(up, `Bring ${thing.name} forward`);
      rename(down, `Send ${thing.name} back`);
      up.disabled = place === 0;
      down.disabled = place === count - 1;
      facts.textContent = factsOf(thing);
    };
    return { node, show };
  }
}

function rename(button, label) {
  button.title = label;
  button.setAttribute("aria-label", label);
}

/** @returns {string} "12,345 px, score 0.95" */
function factsOf(thing) {
  const mask = documents.maskOf(thing);
  if (!mask) return documents.isWaiting(thing) ? "waiting for the mask" : "empty";
  const best = documents.chosen(thing.answer?.candidates, thing.pick);
  const pixels = `${area(mask).toLocaleString("en")} px`;
  if (!best) return `${pixels}, by hand`;
  const remark = thing.added || thing.removed ? ", edited" : best.score < LOW_SCORE ? ", low" : "";
  return `${pixels}, score ${best.score.toFixed(2)}${remark}`;
}
