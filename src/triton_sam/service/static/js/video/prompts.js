/**
 * What was asked about each object: by object and frame. Prompts are immutable.
 *
 * @typedef {{x: number, y: number, label: 0|1}} Point  whole original pixels
 * @typedef {{points: Point[], box: number[]|null, isMask: boolean}} Prompt  box: x0, y0, x1, y1; isMask: a mask was given
 */

/** @type {Prompt} */
export const NO_PROMPT = Object.freeze({ points: [], box: null, isMask: false });

/** @param {Prompt} prompt @param {Point} point @returns {Prompt} */
export const withPoint = (prompt, point) => ({ ...prompt, points: [...prompt.points, point] });

/** @param {Prompt} prompt @param {number} index @returns {Prompt} */
export const withoutPoint = (prompt, index) => ({ ...prompt, points: prompt.points.filter((_, at) => at !== index) });

/** @param {Prompt} prompt @param {number[]} box a new one; points were about what was shown before it @returns {Prompt} */
export const withBox = (prompt, box) => ({ ...prompt, box, points: [] });

/** @param {Prompt} prompt */
export const isEmpty = ({ points, box, isMask }) => points.length === 0 && box === null && !isMask;

/** @param {number} object @param {number} frame @param {Prompt} prompt @returns {object} the API's request */
export function bodyOf(object, frame, { points, box }) {
  return {
    frame_index: frame,
    object_id: object,
    clear_old_points: true,
    ...(points.length && { points: points.map(({ x, y }) => [x, y]), labels: points.map(({ label }) => label) }),
    ...(box && { box }),
  };
}

export class Prompts {
  constructor() {
    /** @type {Map<number, Map<number, Prompt>>} */
    this._objects = new Map();
  }

  /** @param {{object_id: number, prompts: object[]}[]} objects of the API */
  static of(objects) {
    const prompts = new Prompts();
    for (const { object_id: object, prompts: rows } of objects) {
      for (const { frame_index: frame, points, labels, box, mask } of rows) {
        const made = (points ?? []).map(([x, y], index) => ({ x, y, label: labels[index] }));
        prompts.set(object, frame, { points: made, box: box ?? null, isMask: Boolean(mask) });
      }
    }
    return prompts;
  }

  /** @returns {Prompt} */
  get(object, frame) {
    return this._objects.get(object)?.get(frame) ?? NO_PROMPT;
  }

  /** @param {Prompt} prompt an empty one removes it */
  set(object, frame, prompt) {
    const frames = this._objects.get(object) ?? new Map();
    if (isEmpty(prompt)) frames.delete(frame);
    else frames.set(frame, prompt);
    if (frames.size) this._objects.set(object, frames);
    else this._objects.delete(object);
  }

  remove(object) {
    this._objects.delete(object);
  }

  /** @returns {number[]} frames in which an object has a prompt, in order */
  framesOf(object) {
    return [...(this._objects.get(object)?.keys() ?? [])].sort((a, b) => a - b);
  }

  /** @returns {number[]} frames in which any object has one, in order */
  get frames() {
    return [...new Set([...this._objects.values()].flatMap((frames) => [...frames.keys()]))].sort((a, b) => a - b);
  }

  /** @returns {[number, number, Prompt][]} object, frame, prompt */
  get all() {
    return [...this._objects].flatMap(([object, frames]) => [...frames].map(([frame, prompt]) => [object, frame, prompt]));
  }
}
