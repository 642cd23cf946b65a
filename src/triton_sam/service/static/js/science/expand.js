/**
 * A file with many bits, channels or pages -> items of the list, one for each page.
 *
 * @typedef {object} Description of a file, by the service
 * @property {string} format @property {number} width @property {number} height
 * @property {number} pages @property {number} channels @property {string[]|null} channel_names
 * @property {string} dtype @property {number} bits of a sample
 *
 * @typedef {{name: string, file: Blob, view: import("./view.js").View|null}} Item
 */
import { takenAsStack } from "../importers.js";
import { Problem } from "../net/problems.js";
import { isPhotograph } from "./channels.js";
import { headOf, mayHaveMore } from "./file_heads.js";
import { parseHeader, pageBytes } from "./planes.js";
import { pageName } from "./view.js";
import { RenderWorker } from "./render_worker.js";

/** Pages that are added without a question. */
export const MANY_PAGES = 200;
/** Of samples in one response. Each request sends the whole file again, so that it is not one page a request. */
const CHUNK_BYTES = 96 * 2 ** 20;

/** @param {Description} description @returns {boolean} whether there is nothing to choose: the file goes to the model itself */
export const isPlain = ({ pages, channels, channel_names: names, bits }) =>
  pages === 1 && bits <= 8 && (channels === 1 || (isPhotograph(names) && names[3] !== "channel 4"));

export class Expander {
  /**
   * @param {object} parts
   * @param {import("../net/service.js").Service} parts.service
   * @param {import("../net/connection.js").Connection} parts.connection
   * @param {() => {max_image_bytes: number}|null} parts.limits of the server, if known
   * @param {(question: string) => boolean|Promise<boolean>} parts.confirm asks the user
   * @param {(done: number, pages: number) => void} [parts.onPage] told after each page
   * @param {RenderWorker} [parts.renderer]
   */
  constructor({ service, connection, limits, confirm, onPage = () => {}, renderer = new RenderWorker() }) {
    Object.assign(this, { service, connection, limits, confirm, onPage, renderer });
  }

  /**
   * @param {Blob} file @param {string} name @param {AbortSignal} [signal]
   * @returns {Promise<Item[]|AsyncIterable<Item>>} the file itself if there is nothing to choose; none if the user does not
   *   want them all
   */
  async expand(file, name, signal) {
    const plain = { name, file, view: null };
    if (!mayHaveMore(await headOf(file))) return [plain];
    const isLarge = this._isLarge(file);
    if (isLarge && (await takenAsStack(file, name, null))) return [];
    if (isLarge) throw this._tooLarge(file);
    const description = await this.connection.persist(() => this.service.describe(file, signal), signal);
    if (isPlain(description)) return [plain];
    const { pages } = description;
    if (pages > 1 && (await takenAsStack(file, name, pages))) return [];
    if (pages > MANY_PAGES && !(await this.confirm(`${name} has ${pages} pages. Add all of them to the list?`))) return [];
    return this._pages(file, name, description, signal);
  }

  /** Asked before megabytes are sent for nothing. */
  _isLarge({ size }) {
    return size > (this.limits()?.max_image_bytes || Infinity);
  }

  _tooLarge({ size }) {
    const most = this.limits().max_image_bytes;
    const numbers = `${size.toLocaleString("en")} bytes and ${most.toLocaleString("en")} are allowed`;
    return new Problem("too_large", `the image has ${numbers}: send a smaller one, or a part of its pages`);
  }

  async *_pages(file, name, description, signal) {
    const { width, height, channels, pages } = description;
    const chunk = Math.max(1, Math.floor(CHUNK_BYTES / pageBytes({ width, height, channels, dtype: "uint16" })));
    const stack = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
    try {
      for (let first = 0; first < pages; ) {
        const count = Math.min(chunk, pages - first);
        const { header: text, body } = await this.connection.persist(() => this.service.planes(file, first, count, signal), signal);
        const header = parseHeader(text);
        yield* this._develop(header, body, { first, name, stack, description }, signal);
        first += header.pages; // perhaps fewer than were asked for
      }
    } finally {
      this.onPage(pages, pages); // also after an error
    }
  }

  async *_develop(header, body, { first, name, stack, description }, signal) {
    const bytes = pageBytes(header);
    const count = header.pages;
    if (body.size !== bytes * count) throw new Problem("unreachable");
    for (let index = 0; index < count; index += 1) {
      signal?.throwIfAborted();
      const about = {
        ...header,
        notFinite: Math.round(header.notFinite / count),
        names: description.channel_names,
        origin: name,
        stack,
        page: first + index + 1,
        pages: description.pages,
      };
      // Slices of a blob stay outside of the page's memory until they are read.
      const samples = body.slice(index * bytes, (index + 1) * bytes);
      const made = await this.renderer.develop(samples, about, description.bits > 8);
      this.onPage(about.page, about.pages);
      yield { name: pageName(about), ...made };
    }
  }
}
