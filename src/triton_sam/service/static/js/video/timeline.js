/** The timeline: small pictures, a lane for each object, and the place of the frame that is looked at; all of it scrubs. */
import { $, element } from "../ui/dom.js";
import { hexOf } from "./colours.js";
import { laneMarks, laneParts, laneText } from "./lanes.js";
import { Thumbnails } from "./thumbnails.js";
import { timeOf } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
/** Of a lane's drawing; the browser stretches it. */
const LANE_WIDTH = 1000;
const LANE_HEIGHT = 20;

/**
 * @param {import("./room.js").Room} room
 * @returns {{close: () => void}}
 */
export function startTimeline({ film, viewing, service }) {
  const thumbnails = new Thumbnails($("video-thumbs"), film.info, (frame, width, signal) => service.frame(film.info.id, frame, signal, width));
  listenForScrubs(film, viewing);
  showPlace(film, viewing);
  showLanes(film);
  return thumbnails;
}

function listenForScrubs(film, viewing) {
  const strip = $("video-strip");
  const timeline = $("video-timeline");
  const frameAt = ({ clientX }) => {
    const { left, width } = strip.getBoundingClientRect();
    return Math.floor(((clientX - left) / width) * film.info.frames);
  };
  const isScrubbed = (target) => strip.contains(target) || target.closest(".lane-track");
  timeline.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !isScrubbed(event.target)) return;
    timeline.setPointerCapture(event.pointerId);
    strip.focus({ preventScroll: true });
    viewing.pause();
    viewing.go(frameAt(event));
  });
  timeline.addEventListener("pointermove", (event) => {
    if (timeline.hasPointerCapture(event.pointerId)) viewing.go(frameAt(event));
  });
}

function showPlace({ info, word }, viewing) {
  const strip = $("video-strip");
  const show = () => {
    const { frame } = viewing;
    const time = timeOf(frame, info.axis === "t" ? info.fps : null);
    strip.setAttribute("aria-valuenow", String(frame));
    strip.setAttribute("aria-valuetext", `${word} ${frame} of ${info.frames}`);
    if (document.activeElement !== $("video-number")) $("video-number").value = String(frame);
    $("video-time").textContent = time;
    $("video-timeline").style.setProperty("--at", String((frame + 0.5) / info.frames));
    // They keep the focus, as aria-disabled: who steps to the end with Enter can step back.
    $("video-before").setAttribute("aria-disabled", String(frame === 0));
    $("video-next").setAttribute("aria-disabled", String(frame === info.frames - 1));
  };
  viewing.addEventListener("frame", show);
  show();
}

function showLanes(film) {
  const rows = new Map();
  let frame = 0;
  let chosen = null;
  const show = () => {
    frame = 0;
    if (film.isClosed) return;
    const { objects } = film;
    for (const [id, row] of rows) {
      if (film.has(id)) continue;
      row.remove();
      rows.delete(id);
    }
    for (const { id } of objects) {
      if (!rows.has(id)) rows.set(id, newRow(film, id));
      paintRow(film, id, rows.get(id));
    }
    const wanted = objects.map(({ id }) => rows.get(id));
    const lanes = $("video-lanes");
    if (wanted.some((row, index) => lanes.children[index] !== row)) lanes.replaceChildren(...wanted);
    lanes.hidden = objects.length === 0;
    if (film.selected === chosen) return;
    chosen = film.selected;
    rows.get(chosen)?.scrollIntoView({ block: "nearest" });
  };
  // Once a frame of the screen: results may come faster.
  const soon = () => (frame ||= requestAnimationFrame(show));
  for (const event of ["objects", "results"]) film.addEventListener(event, soon);
  show();
}

function newRow(film, id) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${LANE_WIDTH} ${LANE_HEIGHT}`, preserveAspectRatio: "none", role: "img" })) svg.setAttribute(name, value);
  const swatch = element("span", { class: "lane-swatch" });
  swatch.style.background = hexOf(id);
  const choose = element("button", { type: "button", class: "lane-name", onclick: () => film.select(id) }, swatch, element("span", {}, String(id)));
  choose.setAttribute("aria-label", `Object ${id}`);
  const marks = element("div", { class: "lane-marks", "aria-hidden": "true" });
  const row = element("div", { class: "lane", "data-object": String(id) }, choose, element("div", { class: "lane-track" }, svg, marks));
  row.style.setProperty("--colour", hexOf(id));
  return row;
}

function paintRow(film, id, row) {
  const { frames } = film.info;
  const spans = film.tracks.spans(id);
  const prompted = film.prompts.framesOf(id);
  row.classList.toggle("chosen", film.selected === id);
  row.querySelector(".lane-name").setAttribute("aria-pressed", String(film.selected === id));
  const svg = row.querySelector("svg");
  svg.setAttribute("aria-label", laneText(id, spans, prompted, film.word));
  svg.replaceChildren(...laneParts(spans, frames, LANE_WIDTH).map(rectOf));
  row.querySelector(".lane-marks").replaceChildren(
    ...laneMarks(prompted, frames).map((at) => {
      const mark = element("span", { class: "lane-mark" });
      mark.style.left = `${100 * at}%`;
      return mark;
    }),
  );
}

/** @param {import("./lanes.js").Part} part */
function rectOf({ from, to, kind }) {
  const rect = document.createElementNS(SVG, "rect");
  const [y, height] = { present: [3, 14], stale: [3, 14], absent: [9, 2] }[kind];
  for (const [name, value] of Object.entries({ x: from, y, width: to - from, height, class: kind })) rect.setAttribute(name, String(value));
  return rect;
}
