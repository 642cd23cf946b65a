/**
 * Adds files to the project: images become items of the list, other files go to their importers. Nothing is lost in
 * silence: each file that is not taken is named, with the reason.
 */
import { importerOf, expanded } from "../importers.js";
import { Problem, sentence } from "../net/problems.js";
import { newName } from "../storage/database.js";
import { newItem, pageOf } from "./items.js";
import { roomFor } from "./room.js";

/** Some systems do not report a MIME type for these. */
const IMAGE_NAME = /\.(png|jpe?g|tiff?|webp|bmp|gif|jp2|j2k|p[gpn]m|avif|heic|heif)$/i;
const NOT_AN_IMAGE = "This is not an image: drop a PNG, JPEG, WebP or TIFF file.";
/** An image alone gives way to nothing; from this number on the browser is asked not to delete the data on its own. */
const MANY = 2;

const isImage = (file) => file.type.startsWith("image/") || IMAGE_NAME.test(file.name);

/** @param {File} file @returns {string} with the folders inside the dropped or chosen one */
export const nameOf = (file) => (file.pathInFolder ?? file.webkitRelativePath?.replace(/^[^/]*\//, "")) || file.name || "pasted image.png";

export class FileAdding {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this._app = app;
    this._done = 0;
    this._total = 0;
    this._stay = (event) => event.preventDefault();
  }

  /**
   * @param {File[]} files in the order of the list; the first image is opened
   * @returns {Promise<{added: number, refused: {name: string, reason: string}[]}>}
   */
  async add(files) {
    await this._app.project.started;
    const outcome = { added: 0, refused: [], isOpened: false };
    const imports = [];
    if (files.length >= MANY) navigator.storage?.persist?.().catch(() => {});
    this._progress(0, files.length);
    for (const file of files) {
      await this._take(file, outcome, imports);
      this._progress(1, 0);
    }
    this._progress(-files.length, -files.length);
    // Annotations belong to images, which may have come with them.
    for (const { importer, file } of imports) await this._run(importer, file, outcome);
    this._report(files, outcome);
    return outcome;
  }

  async _take(file, outcome, imports) {
    try {
      const importer = await importerOf(file);
      if (importer) imports.push({ importer, file });
      else if (isImage(file)) await this._image(file, outcome);
      else throw new Problem("refused", NOT_AN_IMAGE);
    } catch (error) {
      this._refuse(file, error, outcome);
    }
  }

  async _image(file, outcome) {
    for await (const piece of await expanded(file, nameOf(file))) {
      await this._checkRoom(piece);
      // If the user opens another image meanwhile, this one is only added.
      const isOpened = !outcome.isOpened && (await this._app.project.open(piece.file, piece.name, { view: piece.view }));
      outcome.isOpened = true;
      if (!isOpened) await this._append(piece);
      outcome.added += 1;
    }
  }

  async _append({ file, name, view }) {
    const { project, thumbnails } = this._app;
    const shown = await project.opening.read(file);
    const { width, height } = shown.bitmap;
    const item = newItem({ record: newName(), name, width, height, ...pageOf(view) });
    const isStored = await project.append(item, { file: shown.file, view });
    if (!isStored) {
      shown.bitmap.close();
      throw new Problem("refused", "the browser's storage is full: remove images from the list, or work in several lists");
    }
    await thumbnails.make(item.record, shown.bitmap);
  }

  async _checkRoom({ file, view }) {
    const size = file.size + (view?.source?.size ?? 0);
    const free = await roomFor(size);
    if (free !== null) throw new Problem("refused", `the browser's storage has room for ${free} MB more only: export and remove images first`);
  }

  async _run(importer, file, outcome) {
    try {
      await importer.run(this._app, file);
    } catch (error) {
      this._refuse(file, error, outcome);
    }
  }

  _refuse(file, error, outcome) {
    outcome.refused.push({ name: nameOf(file), reason: sentence(error) });
  }

  _report(files, { refused }) {
    if (files.length === 1 && refused.length === 1) this._app.notice("picture", refused[0].reason);
    else this._app.notice("added", refused.length ? refusalText(refused, files.length) : "");
  }

  _progress(done, total) {
    this._done += done;
    this._total += total;
    const detail = this._total > 1 ? { done: this._done, total: this._total } : null;
    // Files that are not in the list yet would be lost with the page.
    if (detail) addEventListener("beforeunload", this._stay);
    else removeEventListener("beforeunload", this._stay);
    this._app.dispatchEvent(new CustomEvent("adding", { detail }));
  }
}

/**
 * @param {{name: string, reason: string}[]} refused @param {number} count of all files
 * @returns {string} all names, by reason
 */
export function refusalText(refused, count) {
  const byReason = new Map();
  for (const { name, reason } of refused) byReason.set(reason, [...(byReason.get(reason) ?? []), name]);
  const parts = [...byReason].map(([reason, names]) => `${names.join(", ")}: ${reason}`);
  return `${refused.length} of ${count} files ${refused.length === 1 ? "was" : "were"} not added. ${parts.join(" ")}`;
}
