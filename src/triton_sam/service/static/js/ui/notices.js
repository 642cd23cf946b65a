/** One calm sentence a matter. A matter that is over takes its sentence with it. */
import { $, element, iconButton } from "./dom.js";

const shown = new Map();

/**
 * @param {string} kind  the matter: a newer sentence on the same one takes the place of the older
 * @param {string} text  empty: the matter is over
 */
export function notice(kind, text) {
  const before = shown.get(kind);
  if (before?.text === text) return;
  before?.node.remove();
  shown.delete(kind);
  if (!text) return;
  const node = element("div", { class: "notice", "data-kind": kind }, element("span", {}, text));
  node.append(iconButton("close", "Dismiss", () => notice(kind, "")));
  shown.set(kind, { text, node });
  $("notices").append(node);
}
