/** Keys -> actions. Who types a name is left alone. */
import { SHORTCUTS, chord } from "./shortcuts.js";

const ARROWS = { arrowleft: [-1, 0], arrowright: [1, 0], arrowup: [0, -1], arrowdown: [0, 1] };
const STEP = 4;
const FAR = 40;

export class Keyboard {
  /**
   * @param {HTMLElement} surface
   * @param {import("../interaction.js").Interaction} interaction
   * @param {import("./pointer.js").PointerInput} pointer
   * @param {Record<string, (value: unknown) => void>} actions by the names in SHORTCUTS
   */
  constructor(surface, interaction, pointer, actions) {
    this._surface = surface;
    this._interaction = interaction;
    this._pointer = pointer;
    this._actions = actions;
    document.addEventListener("keydown", (event) => this._down(event));
    document.addEventListener("keyup", (event) => this._up(event));
    addEventListener("blur", () => this._hold(false));
    surface.addEventListener("blur", () => interaction.hideCrosshair());
  }

  _up(event) {
    if (event.key === " ") this._hold(false);
    if (event.key === "Shift") this._interaction.hoverAgain(false);
  }

  _down(event) {
    if (event.altKey || document.querySelector("dialog[open]") || this._isElsewhere) return;
    if (event.key === "Shift" && !event.repeat) this._interaction.hoverAgain(true);
    if (isTyping(event.target)) return;
    const isNowhere = document.activeElement === document.body;
    const isOnSurface = document.activeElement === this._surface;
    if ((isOnSurface && this._steer(event)) || ((isOnSurface || isNowhere) && this._startPan(event))) {
      event.preventDefault();
      return;
    }
    const pressed = chord(event);
    const shortcut = SHORTCUTS.find(({ keys }) => keys.includes(pressed));
    if (!shortcut || (shortcut.surfaceOnly && !isOnSurface && !isNowhere)) return;
    event.preventDefault();
    this._actions[shortcut.action](shortcut.value);
  }

  /** While a video is to be seen, the keys are its own. */
  get _isElsewhere() {
    return this._surface.closest(".work").hidden;
  }

  /** Keys that mean something else on buttons. @returns {boolean} whether it was one */
  _steer(event) {
    const key = event.key.toLowerCase();
    if (event.ctrlKey || event.metaKey) return false;
    if (key in ARROWS) {
      const step = event.shiftKey ? FAR : STEP;
      this._interaction.nudge(ARROWS[key][0] * step, ARROWS[key][1] * step);
      return true;
    }
    if (key === "enter") {
      if (!event.repeat) this._interaction.press(event.shiftKey);
      return true;
    }
    return false;
  }

  _startPan(event) {
    if (event.key !== " ") return false;
    this._hold(true);
    return true;
  }

  _hold(isHeld) {
    this._pointer.isPanKeyHeld = isHeld;
    this._surface.classList.toggle("panning", isHeld);
  }
}

/** Fields take letters; a slider or a list of models takes arrows only. */
const isTyping = (target) =>
  target instanceof HTMLElement && target.matches("input:not([type=range]):not([type=color]), textarea, select");
