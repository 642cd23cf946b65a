/** The rows of the list of images: only the visible ones are in the page, so that a list may have thousands. */
import { rowsInView, scrolledTo } from "../core/list_window.js";
import { $, element } from "./dom.js";

/** Thumbnails that stay at hand. */
const KEPT_THUMBNAILS = 300;

export class ImageRows {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this._app = app;
    this._box = $("image-rows");
    this._track = this._box.firstElementChild;
    this._rows = new Map();
    /** Rows that are out of sight, to be used again. */
    this._spare = [];
    this._shape = null;
    this._pictures = new Map();
    /** The row that the keyboard is on. */
    this._cursor = null;
    this._frame = 0;
    this._box.addEventListener("scroll", () => this.refresh(), { passive: true });
    this._box.addEventListener("keydown", (event) => this._key(event));
    this._box.addEventListener("focus", () => this._moveTo(app.project.list.placeOf(app.project.list.current)));
    this._box.addEventListener("click", ({ target }) => {
      const row = target.closest("[role=option]");
      if (row) app.openRecord(row.dataset.record);
      $("surface").focus();
    });
    new ResizeObserver(() => {
      this._shape = null;
      this.refresh();
    }).observe(this._box);
  }

  /** Draws in the next frame. */
  refresh() {
    this._frame ||= requestAnimationFrame(() => {
      this._frame = 0;
      this._draw();
    });
  }

  /** Scrolls so that the open image's row is visible. */
  reveal() {
    const { list } = this._app.project;
    if (document.activeElement === this._box) this._cursor = list.current;
    this._scrollTo(list.placeOf(list.current));
  }

  /** Along the list: downwards, or to the right on a phone. */
  get _along() {
    this._shape ??= this._measured();
    const { scrollLeft, scrollTop } = this._box;
    return { ...this._shape, scrolled: this._shape.isStrip ? scrollLeft : scrollTop };
  }

  _measured() {
    const style = getComputedStyle(this._box);
    const isStrip = style.overflowY === "hidden";
    const { clientWidth, clientHeight } = this._box;
    return { isStrip, length: Number.parseFloat(style.getPropertyValue("--row")), visible: isStrip ? clientWidth : clientHeight };
  }

  _draw() {
    const { items } = this._app;
    const along = this._along;
    if (!along.visible) return;
    const { first, past } = rowsInView({ count: items.length, ...along });
    this._track.style[along.isStrip ? "width" : "height"] = `${items.length * along.length}px`;
    this._track.style[along.isStrip ? "height" : "width"] = "";
    const shown = items.slice(first, past);
    const records = new Set(shown.map(({ record }) => record));
    for (const [record, row] of this._rows) {
      if (records.has(record)) continue;
      this._spare.push(row);
      this._rows.delete(record);
    }
    shown.forEach((item, index) => this._show(item, first + index, along, items.length));
    for (const { node } of this._spare.splice(0)) node.remove();
    const cursor = this._rows.get(this._cursor);
    if (cursor) this._box.setAttribute("aria-activedescendant", cursor.node.id);
    else this._box.removeAttribute("aria-activedescendant");
  }

  _show(item, place, { isStrip, length }, count) {
    if (!this._rows.has(item.record)) this._rows.set(item.record, this._rowFor(item.record));
    const { node, name, state } = this._rows.get(item.record);
    const isOpen = item.record === this._app.project.list.current;
    const objects = item.objectCount === 1 ? "1 object" : `${item.objectCount} objects`;
    node.style.transform = isStrip ? `translateX(${place * length}px)` : `translateY(${place * length}px)`;
    node.dataset.status = item.status;
    node.title = item.name;
    node.classList.toggle("cursor", item.record === this._cursor);
    node.setAttribute("aria-selected", String(isOpen));
    node.setAttribute("aria-posinset", String(place + 1));
    node.setAttribute("aria-setsize", String(count));
    name.textContent = item.name;
    state.textContent = item.objectCount ? `${item.status}, ${objects}` : item.status;
  }

  _rowFor(record) {
    const row = this._spare.pop() ?? this._newRow();
    row.node.id = `image-${record}`;
    row.node.dataset.record = record;
    row.picture.replaceChildren();
    this._picture(record, row);
    return row;
  }

  _newRow() {
    const picture = element("span", { class: "thumbnail" });
    const name = element("span", { class: "image-name" });
    const state = element("span", { class: "image-state" });
    const words = element("span", { class: "image-words" }, name, state);
    const node = element("div", { role: "option", class: "image-row" }, picture, words);
    this._track.append(node);
    return { node, picture, name, state };
  }

  async _picture(record, row) {
    const isShown = () => row.node.isConnected && row.node.dataset.record === record;
    if (!this._pictures.has(record)) {
      const blob = await this._app.thumbnails.get(record, isShown);
      if (!blob) return;
      if (!this._pictures.has(record)) this._pictures.set(record, URL.createObjectURL(blob));
      this._dropOldest();
    }
    if (isShown()) row.picture.replaceChildren(element("img", { src: this._pictures.get(record), alt: "", decoding: "async" }));
  }

  /** @param {string} record whose picture is another one now */
  forgetPicture(record) {
    URL.revokeObjectURL(this._pictures.get(record));
    this._pictures.delete(record);
    const row = this._rows.get(record);
    if (row) this._picture(record, row);
  }

  _dropOldest() {
    if (this._pictures.size <= KEPT_THUMBNAILS) return;
    const [record, address] = [...this._pictures].find(([other]) => !this._rows.has(other)) ?? [];
    if (!record) return;
    URL.revokeObjectURL(address);
    this._pictures.delete(record);
  }

  // -- the keyboard ------------------------------------------------------------------------------------------------

  _key(event) {
    const { list } = this._app.project;
    const last = list.all.length - 1;
    const place = list.placeOf(this._cursor);
    const target = {
      ArrowDown: place + 1, ArrowRight: place + 1, ArrowUp: place - 1, ArrowLeft: place - 1, Home: 0, End: last,
    }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target !== undefined) this._moveTo(Math.min(last, Math.max(0, target)));
    else if ((event.key === "Enter" || event.key === " ") && this._cursor) this._app.openRecord(this._cursor);
    else if (event.key === "Delete" && this._cursor) this._removeHere(place);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  _removeHere(place) {
    this._app.project.remove([this._cursor]);
    const { all } = this._app.project.list;
    this._moveTo(Math.min(place, all.length - 1));
  }

  _moveTo(place) {
    this._cursor = this._app.items[place]?.record ?? null;
    if (this._cursor) this._scrollTo(place);
    this._draw(); // at once: the active descendant must be there
  }

  _scrollTo(place) {
    if (place < 0) return;
    const along = this._along;
    if (!along.visible) return;
    this._box[along.isStrip ? "scrollLeft" : "scrollTop"] = scrolledTo(place, along);
    this.refresh();
  }
}
