/**
 * Which frame is looked at, and playing. A frame is shown when its picture is there; until then the one before stays, with its
 * own masks and prompts.
 *
 * Events: "frame" (another one is wanted), "shown" (another one is to be seen), "playing".
 */

/** For stacks, and videos without a rate. */
const PLAIN_RATE = 10;
const FASTEST = 60;
const AHEAD = 5;
const AHEAD_PLAYING = 16;
const BEHIND = 2;

export class Viewing extends EventTarget {
  /** @param {{frames: number, fps: number|null}} info @param {import("./frames.js").FrameCache} cache */
  constructor({ frames, fps }, cache) {
    super();
    this.frames = frames;
    this.rate = Math.min(FASTEST, fps || PLAIN_RATE);
    /** The wanted frame. */
    this.frame = 0;
    /** @type {number|null} the one that is to be seen */
    this.shown = null;
    this.isPlaying = false;
    this._cache = cache;
    this._way = 1;
    this._due = 0;
    cache.addEventListener("frame", ({ detail }) => detail === this.frame && this._show());
  }

  get picture() {
    return this.shown === null ? null : this._cache.get(this.shown);
  }

  /** @param {number} frame the nearest one there is */
  go(frame) {
    const next = Math.min(this.frames - 1, Math.max(0, Math.round(frame)));
    if (next !== this.frame) this._way = next > this.frame ? 1 : -1;
    this.frame = next;
    this._tell("frame");
    this._want();
    if (this._cache.get(next)) this._show();
  }

  step(by) {
    this.pause();
    this.go(this.frame + by);
  }

  // -- playing -----------------------------------------------------------------------------------------------------

  toggle() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  /** From here; from the start if this is the end. */
  play() {
    if (this.isPlaying || this.frames < 2) return;
    this.isPlaying = true;
    this._tell("playing");
    this._due = performance.now();
    if (this.frame === this.frames - 1) this.go(0);
    requestAnimationFrame((now) => this._tick(now));
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    this._tell("playing");
  }

  _tick(now) {
    if (!this.isPlaying) return;
    const period = 1000 / this.rate;
    const isBehind = this.shown !== this.frame; // it waits for a picture: none is left out
    if (isBehind) this._due = now + period;
    else if (now >= this._due) {
      if (this.frame === this.frames - 1) {
        this.pause();
        return;
      }
      this._due = Math.max(this._due + period, now - period);
      this.go(this.frame + 1);
    }
    requestAnimationFrame((next) => this._tick(next));
  }

  // -- pictures ----------------------------------------------------------------------------------------------------

  _want() {
    const ahead = this.isPlaying ? AHEAD_PLAYING : AHEAD;
    const wanted = [];
    for (let by = 0; by <= ahead; by += 1) wanted.push(this.frame + by * this._way);
    for (let by = 1; by <= BEHIND && !this.isPlaying; by += 1) wanted.push(this.frame - by * this._way);
    this._cache.want(wanted.filter((frame) => frame >= 0 && frame < this.frames));
  }

  _show() {
    this.shown = this.frame;
    this._tell("shown");
  }

  _tell(name) {
    this.dispatchEvent(new Event(name));
  }
}
