/** The list of images beside the tools, and its buttons. With a single image there is none. */
import { $ } from "./dom.js";
import { prefer, preference } from "./preferences.js";

const FOLDED = "list-folded";

/** @param {import("../app.js").App} app */
export function startImageList(app) {
  const { project } = app;
  const rows = new LateRows(app);
  const actions = {
    step: (by) => project.step(by),
    toggleDone: () => project.current && project.setDone(!project.current.isDone),
  };
  const onClick = (id, action) => {
    $(id).onclick = ({ detail }) => {
      action();
      if (detail > 0) $("surface").focus(); // after a mouse click the image's shortcuts work
    };
  };
  onClick("image-before", () => actions.step(-1));
  onClick("image-next", () => actions.step(1));
  onClick("image-done", actions.toggleDone);
  startFold(rows);
  startMenu(app);

  let before = null;
  app.addEventListener("items", () => {
    show(app);
    if (app.items.length > 1) rows.load();
    rows.refresh();
    if (before !== project.list.current) rows.reveal();
    before = project.list.current;
  });
  app.addEventListener("adding", ({ detail }) => {
    $("images-adding").hidden = !detail;
    if (detail) $("images-adding").textContent = `Adding ${detail.done + 1} of ${detail.total}`;
  });
  app.addEventListener("picture", () => {
    if (app.items.length < 2 || !project.current) return;
    const { record, name, status } = project.current;
    app.announce(`Image ${project.list.placeOf(record) + 1} of ${app.items.length}: ${name}, ${status}.`);
  });
  project.addEventListener("redrawn", ({ detail }) => rows.forgetPicture(detail));
  return actions;
}

/** The rows are loaded with the second image: most people have one. */
class LateRows {
  constructor(app) {
    this._app = app;
    this._rows = null;
  }

  load() {
    if (this._rows) return;
    this._rows = import("./image_rows.js").then(({ ImageRows }) => new ImageRows(this._app));
    this._rows.catch(() => (this._rows = null)); // the server is away: tried again with the next change
    this.reveal();
  }

  refresh() {
    this._with((rows) => rows.refresh());
  }

  reveal() {
    this._with((rows) => rows.reveal());
  }

  forgetPicture(record) {
    this._with((rows) => rows.forgetPicture(record));
  }

  _with(action) {
    this._rows?.then(action, () => {});
  }
}

function show(app) {
  const { list, current } = app.project;
  const { items } = app;
  const place = list.placeOf(list.current);
  const done = items.filter(({ isDone }) => isDone).length;
  $("images").hidden = items.length < 2;
  $("images-count").textContent = `${done} of ${items.length} done`;
  $("image-place").textContent = place < 0 ? `${items.length}` : `${place + 1} / ${items.length}`;
  // They keep the focus at the ends of the list.
  $("image-before").setAttribute("aria-disabled", String(place <= 0));
  $("image-next").setAttribute("aria-disabled", String(place < 0 || place === items.length - 1));
  $("image-done").setAttribute("aria-pressed", String(current?.isDone ?? false));
}

function startFold(rows) {
  const fold = (isFolded) => {
    $("images").classList.toggle("folded", isFolded);
    $("images-fold").setAttribute("aria-expanded", String(!isFolded));
    const label = isFolded ? "Show the list of images" : "Fold the list of images";
    $("images-fold").setAttribute("aria-label", label);
    $("images-fold").title = label;
    prefer(FOLDED, isFolded ? "yes" : "no");
    rows.reveal();
  };
  fold(preference(FOLDED, "no") === "yes");
  $("images-fold").onclick = () => fold(!$("images").classList.contains("folded"));
}

function startMenu(app) {
  const { project } = app;
  const dialog = $("list-dialog");
  const choices = {
    add: () => $("open").click(),
    folder: () => $("folder").click(),
    fresh: () => project.begin(),
    remove: () => project.current && project.remove([project.current.record]),
    clear: () => project.remove(project.list.order),
  };
  $("images-menu").onclick = () => dialog.showModal();
  dialog.addEventListener("click", ({ target }) => {
    const choice = target.closest("[data-list]")?.dataset.list;
    if (!choice) return;
    dialog.close();
    choices[choice]();
  });
}
