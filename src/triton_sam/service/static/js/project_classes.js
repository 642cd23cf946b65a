/**
 * The classes of the page: kept in the browser, the same in all its tabs. Changes are told by the app's event "classes".
 *
 * @typedef {import("./core/classes.js").Class} Class
 * @typedef {import("./core/classes.js").Classes} Classes
 */
import * as classes from "./core/classes.js";
import { activeThing } from "./core/document.js";
import { classify, recolouring } from "./core/document_classes.js";
import { amend } from "./core/history.js";

const SETTING = "classes";

export class ProjectClasses {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this._app = app;
    /** @type {Classes} */
    this.value = classes.newClasses();
    this._channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("triton-sam.classes") : null;
    if (this._channel) this._channel.onmessage = ({ data }) => this._adopt({ ...data, activeId: this.value.activeId });
    app.addEventListener("picture", () => this._recolour());
    app.addEventListener("settings", () => this.load());
  }

  /** @returns {Class[]} in their order */
  get list() {
    return this.value.list;
  }

  /** @returns {Class|null} that of the next objects */
  get active() {
    return classes.classOf(this.value, this.value.activeId);
  }

  /** @param {string|null|undefined} id @returns {Class|null} */
  of(id) {
    return classes.classOf(this.value, id);
  }

  /** Reads the classes of the last session. */
  async load() {
    const stored = await this._app.readSetting(SETTING);
    if (stored) this._adopt(stored);
  }

  /** @param {(value: Classes) => Classes} change */
  change(change) {
    const value = change(this.value);
    if (value === this.value) return;
    this._become(value);
    this._app.saveSetting(SETTING, value);
    this._channel?.postMessage(value);
  }

  /**
   * @param {Array<{name: string, colour?: string, number?: number}>} others from a file
   * @returns {Map<string, Class>} the class of each name
   */
  merge(others) {
    const { classes: merged, ids } = classes.mergeClasses(this.value, others);
    this.change(() => merged);
    return new Map(others.map(({ name }, index) => [name, this.of(ids[index])]));
  }

  /** Gives a class to the active object and to the next ones. @param {Class|null} one */
  give(one) {
    const active = activeThing(this._app.document);
    if (active) this._app.change((document) => classify(document, active.id, one));
    this.change((value) => classes.activateClass(value, one?.id ?? null));
    const what = one ? `Class ${one.name}` : "No class";
    this._app.announce(active ? `${active.name}: ${what}.` : `${what} for the next objects.`);
  }

  /** A digit key. @param {number} digit 1 to 9: a place in the list; 0: no class */
  press(digit) {
    const one = digit === 0 ? null : this.list[digit - 1];
    if (one !== undefined) this.give(one);
    else this._app.notice("classes", `There is no class ${digit}: add classes in the panel.`);
  }

  _adopt(stored) {
    this._become(classes.classesFrom(stored));
  }

  _become(value) {
    this.value = value;
    this._app.notice("classes", "");
    this._app.amend(recolouring(value.list));
    this._app.dispatchEvent(new Event("classes"));
  }

  /** An image that was not open may have older colours; "document" follows and shows them. */
  _recolour() {
    this._app.history = amend(this._app.history, recolouring(this.list));
  }
}
