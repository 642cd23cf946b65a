/** The help sheet, and the question for a token. */
import { SHORTCUTS } from "../input/shortcuts.js";
import { sentence } from "../net/problems.js";
import { $, element } from "./dom.js";
import { prefer, preference } from "./preferences.js";

const TOKEN = "token";
const EXPLANATIONS = {
  "On the image": "Move the mouse: the page shows what a click would give. Click to keep it, click again to make it better, " +
    "and begin the next object with New object. On a touch screen tap, drag a box, and use two fingers to zoom and move.",
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
    $("token-text").textContent = app.service.token ? sentence(app.connection.problem) : "Who runs it can give you one.";
    $("token").value = "";
    dialog.showModal();
  });
  // Without a token there is nothing to do here, so whoever closes it is asked again.
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
    $("token").setCustomValidity("This has characters that no token has: copy it once more.");
    $("token").reportValidity();
  };
}

/** As the service takes them; others cannot even be sent. */
const isToken = (text) => /^[\x20-\x7e]+$/.test(text);
