/** The videos' part of the page, loaded when it is needed: the session, its workplace, and the switch between images and video. */
import { $, element, radioGroup } from "../ui/dom.js";
import { askHow } from "./question.js";
import { roomFor } from "./room.js";
import { VideoSession } from "./session.js";

/**
 * @param {import("../app.js").App} app
 * @param {{showHelp: () => void, choose: () => void}} page
 */
export function videoParts(app, page) {
  const session = new VideoSession(app);
  const modes = startModes(app, session);
  showOpening(session);
  let room = null;
  session.addEventListener("film", () => {
    if (room) modes.show("images"); // what both workplaces share leaves it before it goes
    room?.close();
    room = null;
    // In the page before its parts are started: they look for their elements.
    if (session.film) {
      room = roomFor(app, session, { ...page, isActive: modes.isVideo });
      $("work").after(room.element);
      room.begin();
    }
    modes.show(session.film ? "video" : "images");
  });
  return { session, askHow };
}

function startModes(app, session) {
  let mode = "images";
  const mark = radioGroup($("modes"), "mode", (chosen) => show(chosen));
  const show = (chosen) => {
    const isVideo = chosen === "video" && session.film !== null;
    mode = isVideo ? "video" : "images";
    document.body.dataset.mode = mode;
    $("modes").hidden = session.film === null;
    mark(mode);
    $("work").hidden = isVideo;
    if ($("video-work")) $("video-work").hidden = !isVideo;
    // What is told is told where it is seen.
    const messages = $(isVideo ? "video-messages" : "messages");
    for (const id of ["video-opening", "notices"]) messages.prepend($(id));
    (isVideo ? $("video-stage") : $("stage")).append($("announcements"));
    const { name, width, height } = (isVideo ? session.film.info : app.picture) ?? { name: "" };
    $("picture-name").textContent = name;
    document.title = name ? `${name} · triton-sam` : "triton-sam";
    $("status-cursor").textContent = "";
    $("status-picture").textContent = isVideo ? `${width} × ${height} px` : "";
    if (isVideo) $("video-surface").focus();
    else if (app.picture) $("surface").focus();
  };
  // Who opens an image wants to see it; the video stays open.
  app.addEventListener("picture", () => app.picture && show("images"));
  return { show, isVideo: () => mode === "video" };
}

/** How far the sending of a video is, with a button that stops it. */
function showOpening(session) {
  const text = element("span", {});
  const bar = element("progress", { max: 1, "aria-label": "Sent" });
  const stop = element("button", { type: "button", class: "button", onclick: () => session.cancel() }, "Cancel");
  const place = element("div", { class: "progress find-progress", id: "video-opening", hidden: true }, text, bar, stop);
  $("messages").prepend(place);
  session.addEventListener("opening", () => {
    const { opening } = session;
    place.hidden = opening === null;
    if (!opening) return;
    if (opening.isRead) bar.removeAttribute("value");
    else bar.value = opening.share;
    text.textContent = opening.isRead ? "The server reads the video" : `Sending the video, ${Math.floor(100 * opening.share)} %`;
  });
}
