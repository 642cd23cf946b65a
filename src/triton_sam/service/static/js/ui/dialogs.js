/** The help dialog and the token dialog. */
import { SHORTCUTS } from "../input/shortcuts.js";
import { sentence } from "../net/problems.js";
import { $, element } from "./dom.js";
import { prefer, preference } from "./preferences.js";

const TOKEN = "token";
const EXPLANATIONS = {
  "On the image": "Move the mouse: the page shows the mask that a click would give. Click to keep it, click again to refine it, " +
    "and start the next object with New object. On a touch screen tap, drag a box, and use two fingers to zoom and move.",
};

export function startHelp() {
  const listed = SHORTCUTS.filter(({ group }) => group);
  for (const group of new Set(listed.map((shortcut) => shortcut.group))) {
    const shortcuts = listed.filter((shortcut) => shortcut.group === group);
    $("help-body").append(element("h3", {}, group));
    if (EXPLANATIONS[group]) $("help-body").append(element("p", {}, EXPLANATIONS[group]));
    $("help-body").append(
      element("dl", { class: "keys" }, ...shortcuts.map(({ shown, text }) =>
        element("div", {}, element("dt", {}, element("kbd", {}, shown)), element("dd", {}, text)))),
    );
  }
  const show = () => $("help-dialog").showModal();
  $("help").onclick = show;
  return show;
}

/** @param {import("../app.js").App} app */
export function startToken(app) {
  const dialog = $("token-dialog");
  const stored = preference(TOKEN, "");
  app.service.token = isToken(stored) ? stored : "";
  app.connection.addEventListener("state", () => {
    const isLocked = app.connection.state === "locked";
    if (!isLocked || dialog.open) return;
    $("token-text").textContent = app.service.token ? sentence(app.connection.problem) : "Ask the server's administrator for one.";
    $("token").value = "";
    dialog.showModal();
  });
  // Nothing works without a token, so the dialog opens again when it is closed.
  dialog.addEventListener("close", () => app.connection.state === "locked" && dialog.showModal());
  $("token").oninput = () => $("token").setCustomValidity("");
  $("token-form").onsubmit = (event) => {
    const token = $("token").value.trim();
    if (isToken(token)) {
      prefer(TOKEN, token);
      app.unlock(token);
      return;
    }
    event.preventDefault();
    $("token").setCustomValidity("A token cannot have these characters: copy it again.");
    $("token").reportValidity();
  };
}

/** The characters that the service accepts; others cannot be sent in a header. */
const isToken = (text) => /^[\x20-\x7e]+$/.test(text);
