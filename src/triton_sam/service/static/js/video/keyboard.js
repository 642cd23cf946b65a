/** Keys of the video's workplace. Who types a number is left alone. */
import { chord } from "../input/shortcuts.js";

const STEP = 4;
const FAR = 40;
const WAYS = { w: [0, -1], a: [-1, 0], s: [0, 1], d: [1, 0] };

/** KeyboardEvent.key -> frames; 0: the first, Infinity: the last. */
const STEPS = { arrowleft: -1, arrowright: 1, "shift+arrowleft": -10, "shift+arrowright": 10, pageup: -10, pagedown: 10 };

/**
 * @param {object} parts
 * @param {import("./viewing.js").Viewing} parts.viewing
 * @param {import("./interaction.js").VideoInteraction} parts.interaction
 * @param {Record<string, () => void>} parts.actions  by key: "n", "c", "f", "+", ...
 * @param {() => boolean} parts.isActive whether the video is to be seen
 * @param {AbortSignal} end of listening
 */
export function listenForKeys({ viewing, interaction, actions, isActive }, end) {
  const onKey = (event) => {
    if (event.altKey || event.defaultPrevented || !isActive() || document.querySelector("dialog[open]") || takesKeys(event)) return;
    const key = chord(event);
    if (!steer(key, event) && !actions[key]) return;
    event.preventDefault();
    if (actions[key]) actions[key](event);
  };
  const steer = (key, event) => {
    const way = WAYS[key.replace("shift+", "")];
    if (key in STEPS) viewing.step(STEPS[key]);
    else if (key === "home" || key === "end") viewing.step(key === "home" ? -Infinity : Infinity);
    else if (way) interaction.nudge(...way.map((part) => part * (event.shiftKey ? FAR : STEP)));
    else if (/^(shift\+)?enter$/.test(key) && !event.repeat) interaction.press(event.shiftKey);
    else return false;
    return true;
  };
  document.addEventListener("keydown", onKey, { signal: end });
}

/** A field takes letters, a slider and a list arrows, and a button Enter and the space bar. */
function takesKeys({ target, key }) {
  if (!(target instanceof HTMLElement)) return false;
  if (target.matches("button, summary, a")) return key === " " || key === "Enter";
  return target.matches("input, textarea, select");
}
