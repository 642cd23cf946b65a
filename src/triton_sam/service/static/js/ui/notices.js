/** One calm sentence a matter. A matter that is over takes its sentence with it. */
import { $, element, iconButton } from "./dom.js";

const shown = new Map();

/**
 * @param {string} kind  the matter: a newer sentence on the same one takes the place of the older
 * @param {string} text  empty: the matter is over
 * @param {{label: string, run: () => void}|null} [action] what a person can do about it
 */
export function notice(kind, text, action = null) {
  const before = shown.get(kind);
  if (before?.text === text && !action) return;
  before?.node.remove();
  shown.delete(kind);
  if (!text) return;
  const node = element("div", { class: "notice", "data-kind": kind }, element("span", {}, text));
  if (action) {
    const run = () => {
      notice(kind, "");
      action.run();
    };
    node.append(element("button", { type: "button", class: "button", onclick: run }, action.label));
  }
  node.append(iconButton("close", "Dismiss", () => notice(kind, "")));
  shown.set(kind, { text, node });
  $("notices").append(node);
}
