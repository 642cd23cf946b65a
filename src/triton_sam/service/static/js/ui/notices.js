/** Notices for the user, one for each kind. */
import { $, element, iconButton } from "./dom.js";

const shown = new Map();

/**
 * @param {string} kind  a newer notice of the same kind replaces the older one
 * @param {string} text  empty: removes the notice
 * @param {{label: string, run: () => void}|null} [action] a button for the user
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
