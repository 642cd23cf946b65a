/** Asks the worker (worker.js); one task at a time, in order. */
import { withLevels } from "../draw/levels.js";
import { Problem } from "../net/problems.js";

export class RenderWorker {
  /** @param {() => Worker} [make] for tests */
  constructor(make = () => new Worker(new URL("./worker.js", import.meta.url), { type: "module" })) {
    this._make = make;
    this._worker = null;
    this._waiting = new Map();
    this._last = 0;
  }

  /** @param {Blob} samples @param {object} about @param {boolean} isStretched see rendering.js */
  develop = (samples, about, isStretched) => this._ask("develop", { samples, about, isStretched });

  /** @param {import("./view.js").View} view whose samples the next calls use @returns {Promise<Uint32Array[]>} histograms */
  load = (view) => this._ask("load", { view });

  /** @param {Blob} file that the browser reads @returns {Promise<{samples: Blob, width: number, height: number, channels: number}>} */
  split = (file) => this._ask("split", { file });

  /** @returns {Promise<ImageBitmap>} perhaps smaller than the image */
  quick = (view) => this._ask("quick", { view });

  /** @returns {Promise<{bitmap: ImageBitmap, file: Blob}>} the same pixels */
  async finish(view) {
    const { bitmap, levels, file } = await this._ask("finish", { view });
    return { bitmap: withLevels(bitmap, levels), file };
  }

  /** Of any image. @param {import("./view.js").View} view @returns {Promise<Blob>} PNG */
  render = (view) => this._ask("render", { view });

  _ask(task, values) {
    this._worker ??= this._begin();
    const id = ++this._last;
    return new Promise((resolve, reject) => {
      this._waiting.set(id, { resolve, reject });
      this._worker.postMessage({ id, task, values });
    });
  }

  _begin() {
    const worker = this._make();
    worker.onmessage = ({ data: { id, result, problem } }) => {
      const { resolve, reject } = this._waiting.get(id);
      this._waiting.delete(id);
      if (problem) reject(new Problem(problem.code, problem.detail));
      else resolve(result);
    };
    worker.onerror = () => {
      // It did not load, or is out of memory: the next task starts another one.
      this._worker = null;
      for (const { reject } of this._waiting.values()) {
        reject(new Problem("refused", "this image needs more memory than the browser has: open a smaller one"));
      }
      this._waiting.clear();
    };
    return worker;
  }
}
