/** The export buttons: each writes the visible objects of the open image, or of all images, to one file. */
import * as documents from "../core/document.js";
import { safeFileName, stemOfName } from "../core/file_names.js";
import { coveredIndex, objectsOf } from "../export/objects.js";
import { $ } from "./dom.js";
import { download } from "./download.js";
import { notice } from "./notices.js";

/** Milliseconds until the user is told that it takes a moment. */
const PATIENCE = 300;

/** Loaded when there is something to export, so that it is there if the server is away then. */
const load = () => import("../export/kinds.js");

/**
 * @param {import("../app.js").App} app
 * @param {import("../draw/stage.js").Stage} stage
 */
export function startExports(app, stage) {
  const buttons = [...$("exports").querySelectorAll("[data-export]")];
  app.addEventListener("document", () => {
    const isEmpty = objectsOf(app.document).length === 0;
    for (const button of buttons) button.disabled = isEmpty;
  });
  app.addEventListener("picture", () => load().catch(() => {}), { once: true });
  let isBusy = false;
  for (const button of buttons) {
    button.onclick = async () => {
      const { picture } = app;
      const classes = app.classes.list;
      const objects = objectsOf(app.document, classes);
      const waiting = app.document.things.filter((thing) => thing.visible && documents.isWaiting(thing));
      if (isBusy) return;
      isBusy = true;
      const tell = teller("Making the file");
      try {
        const [ending, make] = (await load()).KINDS[button.dataset.export];
        const blob = await make({ picture, objects, classes, pixels: stage.picture, look: stage.scene.look, tell: tell.step });
        download(blob, `${stemOf(picture.name)}-${ending}`);
        notice("export", remark(objects, waiting));
      } catch {
        notice("export", "The export failed. Try again, or hide some objects first.");
      }
      tell.stop();
      isBusy = false;
    };
  }
}

/** Tells the user what is going on, but only if it takes longer than a moment. @param {string} text before the first step */
function teller(text) {
  let now = text;
  let isLate = false;
  const sign = setTimeout(() => {
    isLate = true;
    notice("export", now);
  }, PATIENCE);
  const step = (next) => {
    now = next;
    if (isLate) notice("export", now);
  };
  return { step, stop: () => clearTimeout(sign) };
}

/** @returns {string} a remark about the file for the user, or an empty string */
function remark(objects, waiting) {
  if (waiting.length) return `${waiting[0].name} still waits for its mask, and is exported as it was.`;
  const covered = objects[coveredIndex(objects)];
  return covered ? `${covered.name} lies wholly under others: the label image has no pixel of it.` : "";
}

const stemOf = (name) => safeFileName(stemOfName(name), "image");
