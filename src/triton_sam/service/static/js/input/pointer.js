/** Mouse, pen and fingers on the image -> hover, click, drag, zoom. */

/** CSS pixels that a click may tremble. */
const TREMBLE = { mouse: 3, pen: 6, touch: 10 };
const WHEEL_ZOOM = 0.0015;
/** Lines and pages of a wheel, in pixels. */
const WHEEL_UNITS = [1, 24, 240];
/** Where Ctrl and a click are the right button. */
const IS_MAC = /^Mac/.test(globalThis.navigator?.platform ?? "");
const MIDDLE = 1;
const RIGHT = 2;

export class PointerInput {
  /**
   * @param {HTMLElement} surface
   * @param {import("../draw/stage.js").Stage} stage
   * @param {import("../interaction.js").Interaction} interaction
   */
  constructor(surface, stage, interaction) {
    this._surface = surface;
    this._stage = stage;
    this._interaction = interaction;
    this._fingers = new Map();
    this._press = null;
    this._pinch = null;
    /** While the space bar is held, a drag moves the view. */
    this.isPanKeyHeld = false;
    surface.addEventListener("pointermove", (event) => this._move(event));
    // Moves wait for the next frame. This is most of the latency that the page adds to the server's time.
    this._hasRawMoves = "onpointerrawupdate" in surface;
    if (this._hasRawMoves) surface.addEventListener("pointerrawupdate", (event) => this._hover(event));
    surface.addEventListener("pointerdown", (event) => this._down(event));
    surface.addEventListener("pointerup", (event) => this._up(event));
    surface.addEventListener("pointercancel", (event) => this._cancel(event));
    surface.addEventListener("pointerleave", () => this._press || this._interaction.leave());
    surface.addEventListener("wheel", (event) => this._wheel(event), { passive: false });
    surface.addEventListener("contextmenu", (event) => event.preventDefault());
  }

  /** @returns {[number, number]} device pixels of the canvas */
  _place({ clientX, clientY }) {
    const { left, top } = this._surface.getBoundingClientRect();
    const { unit } = this._stage;
    return [(clientX - left) * unit, (clientY - top) * unit];
  }

  _down(event) {
    if (event.button > RIGHT) return;
    this._surface.focus({ preventScroll: true });
    this._surface.setPointerCapture(event.pointerId);
    if (event.pointerType === "touch") this._fingers.set(event.pointerId, this._place(event));
    if (this._fingers.size === 2) {
      this._beginPinch();
      return;
    }
    if (this._press || this._fingers.size > 2) return;
    const pans = event.button === MIDDLE || this.isPanKeyHeld || !this._interaction.drags;
    const takes = event.button === RIGHT || event.shiftKey || (IS_MAC && event.ctrlKey);
    this._press = { id: event.pointerId, from: this._place(event), last: this._place(event), pans, takes, isDrag: false };
    if (event.button === MIDDLE) event.preventDefault(); // prevents the browser's autoscroll
  }

  _move(event) {
    const place = this._place(event);
    if (this._fingers.has(event.pointerId)) this._fingers.set(event.pointerId, place);
    if (this._pinch) this._movePinch();
    else if (this._press?.id === event.pointerId) this._drag(event, place);
    else if (!this._hasRawMoves) this._hover(event);
  }

  _hover(event) {
    if (this._press || this._pinch || this.isPanKeyHeld || event.pointerType === "touch") return;
    this._interaction.hover(...this._place(event), event.shiftKey, event.timeStamp);
  }

  _drag(event, place) {
    const press = this._press;
    if (!press.isDrag) {
      const far = Math.hypot(place[0] - press.from[0], place[1] - press.from[1]);
      if (far <= TREMBLE[event.pointerType] * this._stage.unit) return;
      press.isDrag = true;
      if (!press.pans) this._interaction.dragStart(...press.from, press.takes);
    }
    if (press.pans) {
      this._stage.move(place[0] - press.last[0], place[1] - press.last[1]);
    } else {
      const events = event.getCoalescedEvents?.() ?? [];
      this._interaction.dragMove((events.length ? events : [event]).map((part) => this._place(part)), event.timeStamp);
    }
    press.last = place;
  }

  _up(event) {
    this._fingers.delete(event.pointerId);
    if (this._pinch) {
      // Lifting the second finger is not a click.
      this._pinch = this._fingers.size === 0 ? null : this._fingersNow();
      return;
    }
    const press = this._press;
    if (press?.id !== event.pointerId) return;
    this._press = null;
    if (press.isDrag && !press.pans) this._interaction.dragEnd();
    else if (press.isDrag) this._hover(event);
    else if (event.altKey) this._interaction.select(...this._place(event));
    else if (!press.pans) this._interaction.click(...this._place(event), press.takes);
  }

  /** While the view is moved by the pointer, what lies under it stays the same. */
  get isMovingView() {
    return this._pinch !== null || Boolean(this._press?.pans);
  }

  _cancel(event) {
    this._fingers.delete(event.pointerId);
    if (this._pinch) this._pinch = this._fingers.size === 0 ? null : this._fingersNow();
    if (this._press?.id === event.pointerId) this.abandon();
  }

  /** Ends a drag without its effect. */
  abandon() {
    this._press = null;
    this._interaction.cancel();
  }

  _beginPinch() {
    this.abandon();
    this._pinch = this._fingersNow();
  }

  _fingersNow() {
    const [a, b = a] = [...this._fingers.values()];
    return { x: (a[0] + b[0]) / 2, y: (a[1] + b[1]) / 2, apart: Math.hypot(a[0] - b[0], a[1] - b[1]) };
  }

  _movePinch() {
    if (this._fingers.size < 2) return;
    const before = this._pinch;
    const now = this._fingersNow();
    this._pinch = now;
    this._stage.move(now.x - before.x, now.y - before.y);
    if (before.apart > 0) this._stage.zoom(now.apart / before.apart, now.x, now.y);
  }

  _wheel(event) {
    event.preventDefault();
    const [dx, dy] = [event.deltaX, event.deltaY].map((delta) => delta * WHEEL_UNITS[event.deltaMode]);
    if (event.shiftKey) this._stage.move(-(dx || dy) * this._stage.unit, 0);
    // A pinch on a trackpad arrives as wheel events with ctrl, in much smaller steps.
    else this._stage.zoom(Math.exp(-dy * WHEEL_ZOOM * (event.ctrlKey ? 6 : 1)), ...this._place(event));
  }
}
