/**
 * What is known of each object in each frame: whether it is there, was tracked and is absent, or was not tracked yet; and
 * whether that is older than a correction. A byte for each object and frame.
 *
 * @typedef {"unknown"|"present"|"absent"} State
 * @typedef {{first: number, last: number, state: State, isStale: boolean}} Span  ends inclusive
 */

/** @type {State[]} */
const STATES = ["unknown", "present", "absent"];
const STATE = 3;
const STALE = 4;
const [FORWARD, BACKWARD] = [1, 2];

export class Tracks {
  /** @param {number} frames of the video */
  constructor(frames) {
    this.frames = frames;
    /** @type {Map<number, Uint8Array>} */
    this._objects = new Map();
    /** The way in which each frame was tracked last; 0 where it was not. */
    this._ways = new Uint8Array(frames);
  }

  /** @param {number} object */
  remove(object) {
    this._objects.delete(object);
  }

  clear() {
    this._objects.clear();
    this._ways.fill(0);
  }

  /** @param {number} object @param {number} frame @param {boolean} isPresent as the newest answer says */
  set(object, frame, isPresent) {
    this._of(object)[frame] = isPresent ? 1 : 2;
  }

  /** @param {number} object @param {number} frame nothing is known any more */
  forget(object, frame) {
    this._of(object)[frame] = 0;
  }

  /** @param {number} frame that was tracked @param {number} start where the tracking began */
  passed(frame, start) {
    if (frame !== start) this._ways[frame] = frame > start ? FORWARD : BACKWARD;
  }

  /** @param {number} object @param {number} frame @returns {State} */
  stateAt(object, frame) {
    return STATES[(this._objects.get(object)?.[frame] ?? 0) & STATE];
  }

  /** @param {number} frame @returns {boolean} whether something was found out there about any object */
  isKnown(frame) {
    return [...this._objects.values()].some((states) => (states[frame] & STATE) !== 0);
  }

  /**
   * A prompt of an object was changed: what was tracked from this frame on, in either direction, is older than it.
   * @param {number} object @param {number} frame @param {Set<number>} prompted frames of the object, whose masks are the prompts'
   */
  outdate(object, frame, prompted) {
    const states = this._of(object);
    for (let at = 0; at < this.frames; at += 1) {
      const depends = at > frame ? this._ways[at] === FORWARD : at < frame && this._ways[at] === BACKWARD;
      if (depends && states[at] && !prompted.has(at)) states[at] |= STALE;
    }
  }

  /** @returns {{first: number, last: number}|null} of all that is stale */
  get staleExtent() {
    const stale = (states) => [states.findIndex((value) => value & STALE), states.findLastIndex((value) => value & STALE)];
    const ends = [...this._objects.values()].map(stale).filter(([first]) => first >= 0);
    if (!ends.length) return null;
    return { first: Math.min(...ends.map(([first]) => first)), last: Math.max(...ends.map(([, last]) => last)) };
  }

  /** @param {number} object @returns {Span[]} over all frames, in order */
  spans(object) {
    const states = this._objects.get(object) ?? new Uint8Array(this.frames);
    const spans = [];
    let first = 0;
    for (let at = 1; at <= this.frames; at += 1) {
      if (at < this.frames && states[at] === states[first]) continue;
      spans.push({ first, last: at - 1, state: STATES[states[first] & STATE], isStale: (states[first] & STALE) !== 0 });
      first = at;
    }
    return spans;
  }

  /**
   * What the server keeps of an earlier visit.
   * @param {number[]} objects @param {[number, number][]} tracked @param {Record<string, [number, number][]>} presence
   * @param {number} start the first prompted frame
   */
  restore(objects, tracked, presence, start) {
    const each = (ranges, take) => {
      for (const [first, last] of ranges) for (let frame = first; frame <= last; frame += 1) take(frame);
    };
    each(tracked, (frame) => {
      this.passed(frame, start);
      for (const object of objects) this.set(object, frame, false);
    });
    for (const object of objects) each(presence[object] ?? [], (frame) => this.set(object, frame, true));
  }

  _of(object) {
    let states = this._objects.get(object);
    if (!states) this._objects.set(object, (states = new Uint8Array(this.frames)));
    return states;
  }
}

/** @param {Span[]} spans @param {(span: Span) => boolean} isMeant @returns {[number, number][]} their frames, neighbours joined */
export function rangesOf(spans, isMeant) {
  const ranges = [];
  for (const span of spans) {
    if (!isMeant(span)) continue;
    const before = ranges.at(-1);
    if (before && before[1] === span.first - 1) before[1] = span.last;
    else ranges.push([span.first, span.last]);
  }
  return ranges;
}

/** @param {[number, number][]} ranges inclusive @returns {number} their frames */
export const lengthOf = (ranges) => ranges.reduce((sum, [first, last]) => sum + last - first + 1, 0);
