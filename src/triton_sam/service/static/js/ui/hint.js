/** The hint below the image about the next step; it disappears once the user has made some objects. */
import * as documents from "../core/document.js";
import { $ } from "./dom.js";
import { prefer, preference } from "./preferences.js";

/** Number of objects after which the hint is no longer shown. */
const LEARNED = 3;

/**
 * @param {import("../app.js").App} app
 * @param {import("../interaction.js").Interaction} interaction
 */
export function startHint(app, interaction) {
  const isTouch = matchMedia("(hover: none)").matches;
  const show = () => {
    const { things, activeId } = app.document;
    if (things.filter(({ found }) => !found).length >= LEARNED) prefer("learned", "yes");
    const text = app.picture && preference("learned", "") !== "yes" ? textOf(interaction.tool, things, activeId, isTouch) : "";
    $("hint").textContent = text;
    $("hint").hidden = !text;
  };
  app.addEventListener("document", show);
  app.addEventListener("picture", show);
  interaction.addEventListener("tool", show);
}

function textOf(tool, things, activeId, isTouch) {
  const active = things.find((thing) => thing.id === activeId);
  if (tool === "brush") return "Paint what is missing";
  if (tool === "eraser") return "Erase what is too much";
  if (tool === "pan") return "";
  if (!active) return isTouch ? "Tap an object, or drag a box around it" : "Click an object, or drag a box around it";
  if (!documents.hasPrompt(active)) return "";
  return isTouch ? "Tap again to add to it, or begin a new object" : "Click adds, Shift+Click takes away, N begins the next object";
}
