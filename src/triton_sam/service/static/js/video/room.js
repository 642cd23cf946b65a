/**
 * The workplace of one open video: made when it is opened, gone when it is closed.
 *
 * @typedef {object} Room  what its parts share
 * @property {import("../app.js").App} app
 * @property {import("./session.js").VideoSession} session
 * @property {import("./film.js").Film} film
 * @property {import("./viewing.js").Viewing} viewing
 * @property {import("./editing.js").Editing} editing
 * @property {import("./tracking.js").Tracker} tracker
 * @property {import("./video_service.js").VideoService} service
 * @property {(direction: string, start?: number) => Promise<void>} track
 * @property {() => void} showMasks
 * @property {(object: number) => void} remove
 */
import { Stage } from "../draw/stage.js";
import { PointerInput } from "../input/pointer.js";
import { $, radioGroup } from "../ui/dom.js";
import { prefer, preference } from "../ui/preferences.js";
import { colourOf } from "./colours.js";
import { Editing } from "./editing.js";
import { FrameCache } from "./frames.js";
import { VideoInteraction } from "./interaction.js";
import { listenForKeys } from "./keyboard.js";
import { workplace } from "./layout.js";
import { startPanel, startSheet } from "./panel.js";
import { FramePicture } from "./picture.js";
import { videoSentence } from "./sentences.js";
import { startTimeline } from "./timeline.js";
import { Tracker } from "./tracking.js";
import { startTransport } from "./transport.js";
import { Viewing } from "./viewing.js";

const BYTES_PER_PIXEL = 4;
const KIND = "video";
/** Milliseconds between signs of life: the server deletes a video that nobody uses, and what is kept here is not asked for. */
const STILL_HERE = 300_000;
/** Objects after which the hint is no longer shown. */
const LEARNED = 2;

/**
 * @param {import("../app.js").App} app @param {import("./session.js").VideoSession} session
 * @param {{isActive: () => boolean, showHelp: () => void, choose: () => void}} page
 * @returns {{element: HTMLElement, begin: () => void, close: () => void}} begin: once the element is in the page
 */
export function roomFor(app, session, page) {
  const { film } = session;
  const element = workplace(film);
  const end = new AbortController();
  const closing = [];
  const begin = () => closing.push(...start(app, session, page, end.signal));
  const close = () => {
    end.abort();
    film.isClosed = true;
    for (const each of closing) each();
    element.remove();
  };
  return { element, begin, close };
}

function start(app, session, page, end) {
  const { film, service } = session;
  const { info } = film;
  const problem = (error) => tellProblem(app, session, error);
  const load = async (frame, signal) => createImageBitmap(await service.frame(info.id, frame, signal));
  const cache = new FrameCache(load, BYTES_PER_PIXEL * info.width * info.height);
  cache.addEventListener("failed", ({ detail }) => problem(detail.error));
  const viewing = new Viewing(info, cache);
  const editing = new Editing(film, service, problem, () => app.notice(KIND, "Objects are being tracked: cancel that first, or wait."));
  const tracker = new Tracker(film, service, problem);
  const stage = new Stage($("video-surface"), () => {});
  const interaction = new VideoInteraction(film, viewing, editing, stage);
  const room = { app, session, film, viewing, editing, tracker, service };
  room.showMasks = showFrames(room, stage);
  room.track = (direction, from) => track(room, direction, from);
  room.remove = (object) => remove(room, object);
  new PointerInput($("video-surface"), stage, interaction);
  const timeline = startTimeline(room);
  startTransport(room);
  startPanel(room);
  const sheet = startSheet();
  startTools(room, stage, interaction);
  listenForKeys({ viewing, interaction, isActive: page.isActive, actions: actionsOf(room, stage, interaction, page, sheet) }, end);
  startHint(film);
  const still = stillHere(room);
  viewing.go(0);
  return [() => clearInterval(still), () => tracker.stop(), () => viewing.pause(), () => timeline.close(), () => stage.close(), () => cache.close()];
}

function tellProblem(app, session, error) {
  const isGone = error?.code === "not_found" || error?.code === "session_expired";
  const action = isGone && session.film?.file ? { label: "Open it again", run: () => session.again() } : null;
  app.notice(KIND, videoSentence(error), action);
}

/** Tells the server that the video is used, if somebody uses it. */
function stillHere({ film, viewing, service }) {
  let isUsed = false;
  const use = () => (isUsed = true);
  viewing.addEventListener("frame", use);
  film.addEventListener("objects", use);
  return setInterval(() => {
    if (isUsed) service.info(film.info.id).catch(() => {}); // what comes next tells what is wrong
    isUsed = false;
  }, STILL_HERE);
}

// -- what is to be seen ----------------------------------------------------------------------------------------------

function showFrames({ film, viewing, service }, stage) {
  const { info } = film;
  const asked = new Set();
  const showMasks = () => {
    const frame = viewing.shown;
    const masks = frame === null ? null : film.masks.get(frame);
    if (frame !== null && !masks && film.tracks.isKnown(frame)) refill(frame);
    const shown = film.objects.filter(({ id, isVisible }) => isVisible && masks?.has(id));
    stage.scene.masks = shown.map(({ id }) => ({ mask: masks.get(id), colour: colourOf(id) }));
    stage.scene.look = { fill: Number(preference("opacity", "50")) / 100, outline: true };
    stage.refresh("masks", "marks");
    // For tests: which frame the canvases show.
    stage.surface.dataset.frame = String(frame ?? "");
  };
  const refill = (frame) => {
    if (asked.has(frame)) return;
    asked.add(frame);
    const known = () => film.refill({ frame_index: frame, results: [] });
    service.masks(info.id, frame).then((answer) => film.refill(answer), known).finally(() => asked.delete(frame));
  };
  viewing.addEventListener("shown", () => {
    const isFirst = stage.picture === null;
    stage.put(new FramePicture(viewing.picture, info), isFirst);
    showMasks();
    stage.drawNow();
  });
  for (const event of ["objects", "results"]) film.addEventListener(event, showMasks);
  return showMasks;
}

/** The frame that is looked at goes with the tracking until the user goes elsewhere. */
async function track({ film, viewing, editing, tracker, app }, direction, from) {
  app.notice(KIND, "");
  viewing.pause();
  await editing.settled;
  let isFollowing = true;
  let expected = viewing.frame;
  const follow = () => {
    if (viewing.frame !== expected) isFollowing = false;
    if (!isFollowing || !film.tracking || viewing.shown !== viewing.frame) return;
    expected = film.tracking.frame;
    viewing.go(expected);
  };
  film.addEventListener("results", follow);
  const end = await (from === undefined ? tracker.track(direction, viewing.frame) : tracker.run(direction, from));
  film.removeEventListener("results", follow);
  const told = { done: "Tracking is done.", cancelled: "Tracking was cancelled; what was tracked stays." }[end];
  if (told) app.announce(told);
}

/** Its prompts can be brought back; its masks have to be tracked again. */
function remove({ film, editing, app }, object) {
  if (!film.has(object)) return;
  const restore = editing.removeObject(object);
  if (restore) app.notice(KIND, `Object ${object} is removed.`, { label: "Undo", run: () => film.isClosed || restore() });
}

// -- what can be done ------------------------------------------------------------------------------------------------

function startTools({ film, viewing, editing }, stage, interaction) {
  const mark = radioGroup($("video-sign"), "sign", (sign) => {
    interaction.sign = Number(sign);
    mark(sign);
  });
  $("video-fit").onclick = () => stage.fit();
  $("video-clear").onclick = () => editing.clear(film.selected, viewing.shown);
  const show = () => {
    const isEmpty = film.prompts.get(film.selected, viewing.shown).points.length === 0 && !film.prompts.get(film.selected, viewing.shown).box;
    $("video-clear").setAttribute("aria-disabled", String(isEmpty));
  };
  film.addEventListener("objects", show);
  viewing.addEventListener("shown", show);
  show();
  // After a mouse click or tap the keys work, and Space does not press the button again.
  $("video-work").addEventListener("click", ({ target, detail }) => {
    const pressed = target.closest("button");
    if (detail > 0 && pressed && !pressed.closest(".panel") && pressed.id !== "video-show-panel") $("video-surface").focus();
  });
}

function actionsOf(room, stage, interaction, page, sheet) {
  const { film, viewing, editing } = room;
  const clear = () => editing.clear(film.selected, viewing.shown);
  const zoomIn = () => stage.zoom(1.25);
  const zoomOut = () => stage.zoom(0.8);
  return {
    " ": () => viewing.toggle(),
    n: () => film.selectNew(),
    c: clear,
    h: () => film.has(film.selected) && film.toggle(film.selected),
    delete: ({ target }) => isOnVideo(target) && room.remove(film.selected),
    t: () => room.track(film.info.axis === "z" ? "both" : "forward"),
    f: () => stage.fit(),
    "+": zoomIn, "shift++": zoomIn, "=": zoomIn, "-": zoomOut, "shift+_": zoomOut,
    o: page.choose,
    "?": page.showHelp, "shift+?": page.showHelp, f1: page.showHelp,
    escape: () => {
      interaction.cancel();
      sheet.close();
    },
    ...Object.fromEntries([1, 2, 3, 4, 5, 6, 7, 8, 9].map((digit) => [String(digit), () => film.has(digit) && film.select(digit)])),
  };
}

/** Not on another button, where the key means nothing. */
const isOnVideo = (target) => target === document.body || target.closest("#video-surface, #video-timeline, #video-objects") !== null;

function startHint(film) {
  const isTouch = matchMedia("(hover: none)").matches;
  const press = isTouch ? "Tap" : "Click";
  const show = () => {
    if (film.objects.length >= LEARNED) prefer("learned-video", "yes");
    const isKnown = preference("learned-video", "") === "yes" || film.tracking;
    const isNew = !film.has(film.selected);
    $("video-hint").textContent = isNew ? `${press} an object, or drag a box around it` : "Track it, add to it with more clicks, or begin a new object";
    $("video-hint").hidden = Boolean(isKnown);
  };
  for (const event of ["objects", "tracking"]) film.addEventListener(event, show);
  show();
}
