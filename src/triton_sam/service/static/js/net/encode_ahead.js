/**
 * Encodes the next image of the list while the user works on this one, so that it is ready when it is opened. One image at
 * a time, only after the open image is ready, and without a retry: a server that is busy or away is left alone.
 *
 * @typedef {object} Ahead  one encode
 * @property {string} record
 * @property {string} model
 * @property {number} since  performance.now() of its start
 * @property {Promise<string|null>} key  null if it failed; never rejects
 * @property {() => void} cancel
 */
export class EncodeAhead {
  /**
   * @param {import("./service.js").Service} service
   * @param {import("./image_keys.js").ImageKeys} images of the open image
   * @param {import("../project/project.js").Project} project
   */
  constructor(service, images, project) {
    this._service = service;
    this._images = images;
    this._project = project;
    /** @type {Ahead|null} */
    this._job = null;
    images.addEventListener("state", () => this._consider());
    project.addEventListener("items", () => this._consider());
    project.addEventListener("redrawing", ({ detail }) => this._job?.record === detail && this.take(null));
  }

  /**
   * Hands over the encode of an image that is opened now; that of any other image is cancelled.
   * @param {string|null} record
   * @returns {Ahead|null}
   */
  take(record) {
    const job = this._job;
    this._job = null;
    if (job?.record === record) return job;
    job?.cancel();
    return null;
  }

  _consider() {
    const { model, state } = this._images;
    const next = this._project.list.neighbour(1);
    const isSame = this._job?.record === next?.record && this._job?.model === model;
    if (state.phase !== "ready" || isSame) return;
    this._job?.cancel();
    this._job = next && !next.keys[model] ? this._begin(next.record, model) : null;
  }

  _begin(record, model) {
    const abort = new AbortController();
    const cancel = () => abort.abort(new DOMException("another image was opened", "AbortError"));
    return { record, model, since: performance.now(), key: this._encode(record, model, abort.signal), cancel };
  }

  async _encode(record, model, signal) {
    try {
      const picture = await this._project.store.readPicture(record);
      signal.throwIfAborted();
      const { image_key: key } = await this._service.encode(picture.file, model, () => {}, signal);
      this._project.keepKey(record, model, key);
      return key;
    } catch {
      return null; // when the image is opened, it is encoded as any other, and the user is told
    }
  }
}
