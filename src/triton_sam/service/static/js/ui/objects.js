/**
 * The list of objects, topmost first, or sorted. Of hundreds only the rows down to the visible ones are in the page; a
 * change touches only the rows that it concerns.
 */
import * as documents from "../core/document.js";
import { classify } from "../core/document_classes.js";
import { accept, areaOf, hasFound, isUntouched, listed, moveListed } from "../core/found.js";
import { rowsInView } from "../core/list_window.js";
import { $, element, iconButton } from "./dom.js";

/** Scores below this are marked as uncertain. */
const LOW_SCORE = 0.5;
/** Rows below the visible ones, so that fast scrolling does not show gaps. */
const SPARE_ROWS = 10;
/** Rows that are always made: more than a list shows that was empty or hidden before. */
const FIRST_ROWS = 24;
/** Of a row, beyond the height of its controls; CSS pixels. */
const ROW_EDGES = 4;
const NO_CLASS = "";

export class ObjectList {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this._app = app;
    this._list = $("objects");
    this._rows = new Map();
    this._frame = 0;
    this._activeId = null;
    /** @type {import("../core/found.js").Order} */
    this._order = "drawn";
    this._list.addEventListener("scroll", () => (this._frame ||= requestAnimationFrame(() => this._show())), { passive: true });
    app.addEventListener("document", () => this._show());
    app.addEventListener("classes", () => this._show());
  }

  /** @param {import("../core/found.js").Order} order used while there are found objects: the control is shown with them */
  setOrder(order) {
    this._order = order;
    this._list.scrollTop = 0;
    this._show();
  }

  _show() {
    this._frame = 0;
    const { document: shown } = this._app;
    const { activeId } = shown;
    const isSorted = this._order !== "drawn" && hasFound(shown);
    const things = listed(shown, isSorted ? this._order : "drawn");
    const { length } = things;
    const { past } = rowsInView({ count: length, ...this._along, spare: SPARE_ROWS });
    const made = things.slice(0, Math.max(past, FIRST_ROWS));
    const ids = new Set(made.map(({ id }) => id));
    for (const [id, row] of this._rows) {
      if (ids.has(id)) continue;
      row.node.remove();
      this._rows.delete(id);
    }
    made.forEach((thing, place) => this._showRow(thing, activeId, place, isSorted ? 0 : length));
    this._list.style.setProperty("--rest", `${(length - made.length) * this._along.length}px`);
    this._bringIntoView(things, activeId);
    $("no-objects").hidden = length > 0 || !this._app.picture;
    $("count-badge").hidden = length === 0;
    $("count-badge").textContent = String(length);
    $("show-panel").setAttribute("aria-label", length ? `Objects and export: ${length}` : "Objects and export");
  }

  /** For {@link rowsInView}. */
  get _along() {
    const { scrollTop, clientHeight } = this._list;
    const controls = Number.parseFloat(getComputedStyle(this._list).getPropertyValue("--touch"));
    return { length: controls + ROW_EDGES, scrolled: scrollTop, visible: clientHeight };
  }

  /** @param {number} count of rows; 0 if they cannot be moved */
  _showRow(thing, activeId, place, count) {
    if (!this._rows.has(thing.id)) this._rows.set(thing.id, { ...this._row(thing.id), state: [] });
    const row = this._rows.get(thing.id);
    // Moving a node removes its focus, so only nodes in the wrong position are moved.
    const there = this._list.children[place];
    if (there !== row.node) this._list.insertBefore(row.node, there ?? null);
    const { classes } = this._app;
    const isActive = thing.id === activeId;
    const state = [thing, isActive, !count || place === 0, !count || place === count - 1, classes.of(thing.classId), isActive ? classes.list : null];
    // The active row shows the mask's size, which the cleaning changes without a change of the object.
    if (!isActive && state.every((value, index) => value === row.state[index])) return;
    row.state = state;
    row.show(...state);
  }

  /** Another object is active: its row is made visible, but without moving anything else. */
  _bringIntoView(things, activeId) {
    if (activeId === this._activeId) return;
    this._activeId = activeId;
    const node = this._rows.get(activeId)?.node;
    if (!node) {
      const place = things.findIndex(({ id }) => id === activeId);
      const { length, visible } = this._along;
      if (place >= 0) this._list.scrollTop = place * length - visible / 2; // which makes its row
      return;
    }
    if (node.contains(document.activeElement)) return;
    const [row, list] = [node.getBoundingClientRect(), this._list.getBoundingClientRect()];
    if (row.top < list.top) this._list.scrollTop -= list.top - row.top;
    else if (row.bottom > list.bottom) this._list.scrollTop += Math.min(row.bottom - list.bottom, row.top - list.top);
  }

  _row(id) {
    const app = this._app;
    const change = (action, ...rest) => app.change((document) => action(document, id, ...rest));
    const activate = () => app.adjust((document) => documents.activate(document, id));
    const swatch = element("input", { type: "color", class: "swatch" });
    swatch.onchange = () => change(documents.describe, { colour: swatch.value, hasOwnColour: true });
    const name = nameField(change, activate);
    const tick = iconButton("done", "Accept", () => {
      const next = node.nextElementSibling ?? node.previousElementSibling;
      change(accept);
      (next?.querySelector(".accept:not([hidden])") ?? $("surface")).focus(); // the button is gone
    });
    tick.classList.add("accept");
    const eye = iconButton("eye", "Hide", () => {
      const { visible } = app.document.things.find((thing) => thing.id === id);
      change(documents.describe, { visible: !visible });
    });
    const bin = iconButton("delete", "Delete", () => {
      change(documents.remove);
      $("surface").focus();
    });
    const shift = (by) => {
      change(moveListed, by);
      const [wanted, other] = by > 0 ? [up, down] : [down, up];
      (wanted.disabled ? other : wanted).focus(); // the row was moved, which removes the focus
    };
    const up = iconButton("up", "Bring forward", () => shift(1));
    const down = iconButton("down", "Send back", () => shift(-1));
    const facts = element("span", { class: "facts" });
    const className = element("span", { class: "class-name" });
    const select = element("select", { class: "class-select" });
    select.onchange = () => change(classify, app.classes.of(select.value));
    const line = element("div", { class: "object-line" }, swatch, name, className, tick, eye, bin);
    const more = element("div", { class: "more" }, select, facts, up, down);
    const node = element("li", { class: "object", "data-id": id }, line, more);
    node.onclick = ({ target }) => target.closest("button, input, select") || activate();

    const show = (thing, isActive, isTop, isBottom, one, classes) => {
      node.classList.toggle("active", isActive);
      node.classList.toggle("hidden", !thing.visible);
      if (isActive) node.setAttribute("aria-current", "true");
      else node.removeAttribute("aria-current");
      if (document.activeElement !== name) name.value = thing.name;
      name.defaultValue = thing.name;
      name.setAttribute("aria-label", `Name of ${thing.name}`);
      swatch.value = thing.colour;
      swatch.setAttribute("aria-label", `Colour of ${thing.name}`);
      tick.hidden = !isUntouched(thing);
      rename(tick, `Accept ${thing.name}`);
      rename(eye, `${thing.visible ? "Hide" : "Show"} ${thing.name}`);
      eye.querySelector("use").setAttribute("href", thing.visible ? "#i-eye" : "#i-hidden");
      rename(bin, `Delete ${thing.name}`);
      rename(up, `Bring ${thing.name} forward`);
      rename(down, `Send ${thing.name} back`);
      up.disabled = isTop;
      down.disabled = isBottom;
      className.textContent = className.title = one?.name ?? "";
      if (!isActive) return; // the rest is not visible
      facts.textContent = factsOf(thing);
      showClasses(select, classes, one, thing.name);
    };
    return { node, show };
  }
}

/** @param {(action: Function, fields: object) => void} change @param {() => void} activate */
function nameField(change, activate) {
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
  return name;
}

function showClasses(select, classes, one, name) {
  select.hidden = classes.length === 0;
  select.setAttribute("aria-label", `Class of ${name}`);
  const options = [{ id: NO_CLASS, name: "No class" }, ...classes];
  select.replaceChildren(...options.map(({ id, name: text }) => element("option", { value: id }, text)));
  select.value = one?.id ?? NO_CLASS;
}

function rename(button, label) {
  button.title = label;
  button.setAttribute("aria-label", label);
}

/** @returns {string} "12,345 px, score 0.95" */
function factsOf(thing) {
  const mask = documents.maskOf(thing);
  if (!mask) return documents.isWaiting(thing) ? "waiting for the mask" : "empty";
  const score = documents.scoreOf(thing);
  const pixels = `${areaOf(mask).toLocaleString("en")} px`;
  if (score === null) return thing.base ? `${pixels}, imported` : `${pixels}, by hand`;
  const isEdited = thing.added || thing.removed || (thing.base && (thing.answer || !thing.found));
  const remark = isEdited ? ", edited" : score < LOW_SCORE ? ", low" : "";
  const state = documents.isWaiting(thing) ? ", updating" : "";
  return `${pixels}, score ${score.toFixed(2)}${remark}${state}`;
}
