/** The dialog in which classes are added, renamed, coloured, ordered, deleted, imported and exported. */
import * as classes from "../core/classes.js";
import { $, element, iconButton } from "./dom.js";
import { download } from "./download.js";

/** @param {import("../app.js").App} app */
export function startClassDialog(app) {
  const dialog = $("classes-dialog");
  const rows = new Map();
  const show = () => {
    const { list } = app.classes;
    for (const [id, row] of rows) {
      if (app.classes.of(id)) continue;
      row.node.remove();
      rows.delete(id);
    }
    list.forEach((one, place) => {
      if (!rows.has(one.id)) rows.set(one.id, rowOf(app, one.id));
      const { node, show: showRow } = rows.get(one.id);
      // Moving a node removes its focus, so only nodes in the wrong position are moved.
      const there = $("class-rows").children[place];
      if (there !== node) $("class-rows").insertBefore(node, there ?? null);
      showRow(one, place, list.length);
    });
    $("export-classes").disabled = list.length === 0;
  };
  app.addEventListener("classes", show);
  $("edit-classes").onclick = () => {
    tell("");
    dialog.showModal();
    $("class-name").focus();
  };
  $("add-class").onsubmit = (event) => {
    event.preventDefault();
    add(app, $("class-name"));
  };
  startFiles(app);
  show();
}

function add(app, input) {
  const name = input.value.trim();
  const before = app.classes.value;
  app.classes.change((value) => classes.addClass(value, name));
  tell(name && app.classes.value === before ? `There is a class ${name} already.` : "");
  input.value = "";
  input.focus();
}

function startFiles(app) {
  $("export-classes").onclick = () =>
    download(new Blob([JSON.stringify(classes.classList(app.classes.value), null, 1)], { type: "application/json" }), "classes.json");
  $("import-classes").onclick = () => $("classes-file").click();
  $("classes-file").onchange = async () => {
    const [file] = $("classes-file").files;
    try {
      const before = app.classes.list.length;
      if (file) app.classes.merge(classes.readClassList(await file.text()));
      tell(`${app.classes.list.length - before} added from ${file?.name}.`);
    } catch (error) {
      tell(error.message);
    }
    $("classes-file").value = ""; // otherwise the same file could not be chosen again
  };
}

function rowOf(app, id) {
  const change = (action, ...rest) => app.classes.change((value) => action(value, id, ...rest));
  const digit = element("kbd", { "aria-hidden": "true" });
  const swatch = element("input", { type: "color", class: "swatch" });
  swatch.onchange = () => change(classes.describeClass, { colour: swatch.value });
  const name = element("input", { type: "text", class: "name", maxLength: classes.LONGEST_CLASS_NAME, spellcheck: false });
  name.onchange = () => {
    change(classes.describeClass, { name: name.value });
    name.value = app.classes.of(id)?.name ?? "";
  };
  const shift = (by) => {
    change(classes.moveClass, by);
    const [wanted, other] = by < 0 ? [up, down] : [down, up];
    (wanted.disabled ? other : wanted).focus(); // the row was moved, which removes the focus
  };
  const up = iconButton("up", "Up", () => shift(-1));
  const down = iconButton("down", "Down", () => shift(1));
  const bin = iconButton("delete", "Delete", () => remove(app, id));
  const node = element("li", { class: "class-row" }, digit, swatch, name, up, down, bin);
  const show = (one, place, count) => {
    digit.textContent = place < 9 ? String(place + 1) : "";
    swatch.value = one.colour;
    swatch.setAttribute("aria-label", `Colour of ${one.name}`);
    if (document.activeElement !== name) name.value = one.name;
    name.setAttribute("aria-label", `Name of class ${one.name}`);
    for (const [button, label] of [[up, `Move ${one.name} up`], [down, `Move ${one.name} down`], [bin, `Delete class ${one.name}`]]) {
      button.title = label;
      button.setAttribute("aria-label", label);
    }
    up.disabled = place === 0;
    down.disabled = place === count - 1;
  };
  return { node, show };
}

function remove(app, id) {
  const one = app.classes.of(id);
  const place = app.classes.list.indexOf(one);
  const wasActive = app.classes.value.activeId === id;
  app.classes.change((value) => classes.deleteClass(value, id));
  const count = app.document.things.filter((thing) => thing.classId === id).length;
  const objects = count ? ` ${count === 1 ? "1 object" : `${count} objects`} of this image ${count === 1 ? "has" : "have"} no class now.` : "";
  tell(`${one.name} was deleted.${objects}`, () => {
    app.classes.change((value) => classes.restoreClass(value, one, place));
    if (wasActive) app.classes.change((value) => classes.activateClass(value, id));
    tell("");
  });
  $("undo-class").focus();
}

/** @param {string} text @param {(() => void)|null} [undo] */
function tell(text, undo = null) {
  $("classes-status").textContent = text;
  $("undo-class").hidden = undo === null;
  $("undo-class").onclick = () => {
    undo();
    $("class-name").focus();
  };
}
