/** Playing, going to a frame by its number, tracking, its progress, and the button that brings old results up to date. */
import { $, icon } from "../ui/dom.js";
import { counted } from "./words.js";

/** @param {import("./room.js").Room} room */
export function startTransport(room) {
  startPlaying(room);
  startTracking(room);
}

function startPlaying({ viewing }) {
  const play = $("video-play");
  play.onclick = () => viewing.toggle();
  $("video-before").onclick = () => viewing.step(-1);
  $("video-next").onclick = () => viewing.step(1);
  $("video-number").onchange = ({ target }) => {
    viewing.pause();
    viewing.go(target.valueAsNumber || 0);
    target.value = String(viewing.frame);
  };
  viewing.addEventListener("playing", () => {
    const label = viewing.isPlaying ? "Pause" : "Play";
    play.replaceChildren(icon(viewing.isPlaying ? "pause" : "play"));
    play.setAttribute("aria-label", label);
    play.title = `${label} (Space)`;
  });
}

function startTracking({ film, track, tracker, app }) {
  const ways = ["backward", "both", "forward"];
  for (const way of ways) $(`video-${way}`).onclick = () => track(way);
  $("video-cancel").onclick = () => tracker.cancel();
  $("video-remedy").onclick = () => {
    const { remedy } = film;
    if (remedy) track(remedy.direction, remedy.start);
  };
  const show = () => {
    const { tracking, word } = film;
    const remedy = tracking ? null : film.remedy;
    const hadFocus = $("video-track").contains(document.activeElement) || [$("video-cancel"), $("video-remedy")].includes(document.activeElement);
    const canTrack = film.prompts.frames.length > 0;
    $("video-track").hidden = tracking !== null;
    $("video-progress").hidden = tracking === null;
    $("video-remedy").hidden = !remedy;
    if (remedy) $("video-remedy").lastElementChild.textContent = `Track again from ${word} ${remedy.start}`;
    const main = film.info.axis === "z" ? "both" : "forward";
    for (const way of ways) {
      $(`video-${way}`).disabled = !canTrack;
      $(`video-${way}`).classList.toggle("strong", way === main && !remedy);
    }
    if (tracking) showProgress(tracking, word);
    if (hadFocus && !document.activeElement?.checkVisibility?.()) $("video-surface").focus();
  };
  for (const event of ["objects", "results", "tracking"]) film.addEventListener(event, show);
  film.addEventListener("tracking", () => film.tracking?.done === 0 && app.announce("Tracking"));
  show();
}

function showProgress({ done, of }, word) {
  const bar = $("video-progress-bar");
  if (done) bar.value = Math.min(1, done / of);
  else bar.removeAttribute("value");
  $("video-progress-text").textContent = done ? `${done.toLocaleString("en")} of ${counted(of, word)}` : "Tracking";
}
