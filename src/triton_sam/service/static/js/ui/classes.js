/** The classes in the panel: one is chosen for the active object and the next ones. */
import { $, element, radioGroup } from "./dom.js";
import { startClassDialog } from "./class_dialog.js";

const NONE = "none";

/** @param {import("../app.js").App} app */
export function startClasses(app) {
  const group = $("class-chips");
  const mark = radioGroup(group, "class", (id) => app.classes.give(app.classes.of(id)));
  const show = () => {
    const { list, value } = app.classes;
    const focused = group.contains(document.activeElement) ? document.activeElement.dataset.class : null;
    group.replaceChildren(...(list.length ? [...list.map(chip), noneChip()] : []));
    mark(value.activeId ?? NONE);
    if (focused) group.querySelector(`[data-class="${focused}"]`)?.focus();
    $("no-classes").hidden = list.length > 0;
    $("edit-classes").textContent = list.length ? "Edit" : "Add classes";
  };
  app.addEventListener("classes", show);
  startClassDialog(app);
  show();
}

/** @param {import("../core/classes.js").Class} one @param {number} place */
function chip(one, place) {
  const digit = place < 9 ? String(place + 1) : "";
  const dot = element("span", { class: "dot" });
  dot.style.background = one.colour;
  const label = { title: digit ? `${one.name} (${digit})` : one.name, "aria-label": one.name };
  const made = element("button", { type: "button", class: "chip", role: "radio", "data-class": one.id, ...label }, dot, element("span", { class: "chip-name" }, one.name));
  if (digit) made.append(element("kbd", { "aria-hidden": "true" }, digit));
  return made;
}

const noneChip = () =>
  element("button", { type: "button", class: "chip", role: "radio", "data-class": NONE, title: "No class (0)", "aria-label": "No class" },
    element("span", { class: "chip-name" }, "No class"), element("kbd", { "aria-hidden": "true" }, "0"));
