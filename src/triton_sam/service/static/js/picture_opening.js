/** Decodes images: one at a time for the screen, and others that are only added to the list. */
import { prepared } from "./draw/levels.js";
import { decode } from "./image_decoding.js";
import { Problem } from "./net/problems.js";

export class PictureOpening {
  /**
   * @param {object} parts
   * @param {import("./net/service.js").Service} parts.service
   * @param {import("./net/connection.js").Connection} parts.connection
   * @param {() => {max_image_bytes: number, max_image_pixels: number}|null} parts.limits of the server, if known
   * @param {(isOpening: boolean) => void} parts.tell
   */
  constructor({ service, connection, limits, tell }) {
    Object.assign(this, { _service: service, _connection: connection, _limits: limits, _tell: tell });
    this._abort = new AbortController();
    /** Counts the images that were asked for. */
    this.turn = 0;
  }

  /**
   * @param {() => Blob|Promise<Blob>} load
   * @returns {Promise<{bitmap: ImageBitmap, file: Blob}|null>} null if another image was asked for meanwhile
   * @throws {Problem} if it cannot be shown
   */
  async open(load) {
    const turn = ++this.turn;
    this._abort.abort();
    this._abort = new AbortController();
    const { signal } = this._abort;
    try {
      this._tell(true);
      const shown = await this.read(await load(), signal);
      shown.bitmap = await prepared(shown.bitmap);
      if (turn === this.turn) return shown;
      shown.bitmap.close();
      return null;
    } catch (error) {
      if (turn !== this.turn) return null;
      throw error;
    } finally {
      if (turn === this.turn) this._tell(false);
    }
  }

  /** Gives up the image that is being opened. */
  cancel() {
    this.turn += 1;
    this._abort.abort();
    this._tell(false);
  }

  /** @param {Blob} file @param {AbortSignal} [signal] @returns {Promise<{bitmap: ImageBitmap, file: Blob}>} of an allowed size */
  async read(file, signal) {
    this._checkSize(file.size, "bytes", this._limits()?.max_image_bytes);
    const shown = await decode(file, (unshown) =>
      this._connection.persist(() => this._service.preview(unshown, signal), signal));
    try {
      this._checkSize(shown.bitmap.width * shown.bitmap.height, "pixels", this._limits()?.max_image_pixels);
    } catch (error) {
      shown.bitmap.close();
      throw error;
    }
    return shown;
  }

  /** Checked here, before megabytes are sent for nothing. */
  _checkSize(size, unit, most) {
    if (!most || size <= most) return;
    const numbers = `${size.toLocaleString("en")} ${unit} and ${most.toLocaleString("en")} are allowed`;
    throw new Problem("too_large", `the image has ${numbers}: send a smaller one`);
  }
}
