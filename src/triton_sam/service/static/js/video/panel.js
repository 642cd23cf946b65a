/** The panel of a video: its objects, what is known about the file, the model, and the exports. */
import { safeFileName, stemOfName } from "../core/file_names.js";
import { download } from "../ui/download.js";
import { $, element, icon, iconButton } from "../ui/dom.js";
import { preference, prefer } from "../ui/preferences.js";
import { hexOf } from "./colours.js";
import { isEmbedded } from "./models.js";
import { videoSentence } from "./sentences.js";
import { lengthOf, rangesOf } from "./tracks.js";
import { counted } from "./words.js";

const ENDINGS = { mp4: "overlay.mp4", png: "labels.zip", coco: "coco.json", youtube_vis: "youtube_vis.json", tiff: "labels.tif" };

/** @param {import("./room.js").Room} room */
export function startPanel(room) {
  showObjects(room);
  showAbout(room);
  startExports(room);
  startOpacity(room);
}

function showObjects({ film, remove }) {
  let frame = 0;
  const list = $("video-objects");
  const rows = new Map();
  const show = () => {
    frame = 0;
    if (film.isClosed) return;
    const { objects } = film;
    const shown = objects.map((object) => {
      if (!rows.has(object.id)) rows.set(object.id, newRow(film, object.id, remove));
      return updated(rows.get(object.id), film, object);
    });
    // Only what has changed: a button that is replaced while it is pressed is not clicked.
    const wanted = film.has(film.selected) ? shown : [...shown, nextRow(film)];
    if (wanted.some((row, index) => list.children[index] !== row) || list.childElementCount !== wanted.length) list.replaceChildren(...wanted);
    $("video-none").hidden = objects.length > 0;
    $("video-badge").textContent = String(objects.length);
    $("video-badge").hidden = objects.length === 0;
    $("video-show-panel").setAttribute("aria-label", objects.length ? `Objects and export: ${objects.length}` : "Objects and export");
  };
  $("video-show-panel").append(element("span", { class: "badge", id: "video-badge", hidden: true }));
  const soon = () => (frame ||= requestAnimationFrame(show));
  for (const event of ["objects", "results"]) film.addEventListener(event, soon);
  show();
  $("video-new").onclick = () => film.selectNew();
}

function newRow(film, id, remove) {
  const choose = element("button", { type: "button", class: "video-object", onclick: () => film.select(id) },
    swatchOf(id), element("span", { class: "video-object-name" }, `Object ${id}`), element("span", { class: "facts" }));
  const eye = iconButton("eye", "", () => film.toggle(id));
  eye.classList.add("video-eye");
  const bin = iconButton("delete", `Remove object ${id}`, () => remove(id));
  return element("li", { class: "object", "data-object": String(id) }, element("div", { class: "object-line" }, choose, eye, bin));
}

function updated(row, film, { id, isVisible }) {
  const isChosen = film.selected === id;
  row.classList.toggle("active", isChosen);
  row.classList.toggle("hidden", !isVisible);
  row.querySelector(".video-object").setAttribute("aria-pressed", String(isChosen));
  row.querySelector(".facts").textContent = factsOf(film, id);
  const label = `${isVisible ? "Hide" : "Show"} object ${id}`;
  const eye = row.querySelector(".video-eye");
  if (eye.title !== label) {
    eye.replaceChildren(icon(isVisible ? "eye" : "hidden"));
    eye.title = label;
    eye.setAttribute("aria-label", label);
  }
  return row;
}

/** The object that the next click begins. */
function nextRow(film) {
  const text = film.objects.length ? `Object ${film.selected}: click it in the ${film.word}` : `Object ${film.selected}`;
  return element("li", { class: "object active" }, element("div", { class: "object-line" }, swatchOf(film.selected), element("span", { class: "video-next" }, text)));
}

function swatchOf(id) {
  const swatch = element("span", { class: "lane-swatch" });
  swatch.style.background = hexOf(id);
  return swatch;
}

/** @returns {string} "in 36 frames, lost in 5" */
function factsOf({ tracks, prompts, word }, id) {
  const spans = tracks.spans(id);
  const count = (isMeant) => lengthOf(rangesOf(spans, isMeant));
  const present = count(({ state }) => state === "present");
  const absent = count(({ state }) => state === "absent");
  if (!present && !absent) return prompts.framesOf(id).length ? "waiting for the mask" : "no prompts";
  const stale = count(({ isStale }) => isStale);
  return `in ${counted(present, word)}${absent ? `, lost in ${absent.toLocaleString("en")}` : ""}${stale ? `, ${stale.toLocaleString("en")} outdated` : ""}`;
}

function showAbout({ film, session, app }) {
  const { info, word } = film;
  const rate = info.fps && info.axis === "t" ? `, ${Number(info.fps.toFixed(2))} frames a second` : "";
  $("video-facts").textContent = `${info.width} × ${info.height} px, ${counted(info.frames, word)}${rate}`;
  const notes = [info.contrast?.note, ...(info.notes ?? [])].filter(Boolean);
  $("video-notes").replaceChildren(...[...new Set(notes)].map((note) => element("p", {}, note)));
  const select = $("video-model");
  const models = session.models;
  const known = models.some(({ id }) => id === info.model) ? models : [{ id: info.model, title: info.model }, ...models];
  select.replaceChildren(...known.map(({ id, title }) => element("option", { value: id, title }, id)));
  select.value = info.model;
  select.disabled = known.length < 2 || !film.file;
  select.onchange = () => session.useModel(select.value).then(() => session.film === film && (select.value = info.model));
  $("video-memory").hidden = !isEmbedded(info.model);
  $("video-close").onclick = () => session.mayClose() && session.close();
  app.announce(`${info.name}: ${counted(info.frames, word)}.`);
}

function startExports({ film, session, app, editing }) {
  const buttons = [...$("video-exports").querySelectorAll("[data-format]")];
  let isBusy = false;
  const show = () => {
    const isHeld = isBusy || film.tracking !== null;
    const isEmpty = !isHeld && !film.objects.some(({ id }) => film.tracks.spans(id).some(({ state }) => state === "present"));
    for (const button of buttons) button.disabled = isHeld || isEmpty;
  };
  for (const button of buttons) {
    const { format } = button.dataset;
    button.onclick = async () => {
      isBusy = true;
      show();
      app.notice("video-export", `Making the file: ${button.textContent}.`);
      try {
        await editing.settled;
        const blob = await session.service.exported(film.info.id, format);
        download(blob, `${safeFileName(stemOfName(film.info.name), "video")}-${ENDINGS[format]}`);
        app.notice("video-export", film.remedy ? "The file has results from before your corrections: track again to bring them up to date." : "");
      } catch (error) {
        app.notice("video-export", videoSentence(error));
      }
      isBusy = false;
      show();
    };
  }
  for (const event of ["objects", "results", "tracking"]) film.addEventListener(event, show);
  show();
}

function startOpacity({ showMasks }) {
  const opacity = $("video-opacity");
  opacity.value = preference("opacity", "50");
  opacity.oninput = () => {
    prefer("opacity", opacity.value);
    $("opacity").value = opacity.value;
    showMasks();
  };
}

/** The panel is a sheet on small screens. */
export function startSheet() {
  const panel = $("video-panel");
  const show = (isOpen) => {
    const hadFocus = panel.contains(document.activeElement);
    panel.classList.toggle("open", isOpen);
    $("video-show-panel").setAttribute("aria-expanded", String(isOpen));
    if (isOpen) $("video-hide-panel").focus();
    else if (hadFocus && $("video-show-panel").offsetParent) $("video-show-panel").focus();
  };
  $("video-show-panel").onclick = () => show(!panel.classList.contains("open"));
  $("video-hide-panel").onclick = () => show(false);
  return { close: () => panel.classList.contains("open") && show(false) };
}

