/** What an import has done, as a sentence for the user: what came, and by name what did not. */
import { Problem } from "../net/problems.js";

/** Names that are written out; the rest is counted. */
const MOST_NAMES = 4;

const counted = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

/** @param {string[]} names @returns {string} "a, b, c, d and 16 more" */
function listed(names) {
  const shown = names.slice(0, MOST_NAMES).join(", ");
  return names.length > MOST_NAMES ? `${shown} and ${(names.length - MOST_NAMES).toLocaleString("en")} more` : shown;
}

export class Outcome {
  /** @param {number} total images of the file */
  constructor(total) {
    this.total = total;
    this.images = 0;
    this.boxes = 0;
    this.masks = 0;
    /** Annotations without a mask or box within the image. */
    this.unusable = 0;
    /** @type {string[]} images that are not in the list */
    this.missing = [];
    /** @type {string[]} images of another size than the file says */
    this.otherSizes = [];
    /** @type {string[]} images of older lists, which were never opened since */
    this.unknownSizes = [];
    this._reasons = new Map();
  }

  /** @param {Array<{box?: number[]}>} objects of one image */
  count(objects) {
    this.images += 1;
    this.boxes += objects.filter(({ box }) => box).length;
    this.masks += objects.filter(({ box }) => !box).length;
  }

  /** @param {Error} error why an annotation cannot be read */
  broken({ message }) {
    this._reasons.set(message, (this._reasons.get(message) ?? 0) + 1);
  }

  /** @returns {string} */
  get text() {
    const came = [
      ...(this.masks || !this.boxes ? [counted(this.masks, "mask", "masks")] : []),
      ...(this.boxes ? [counted(this.boxes, "box", "boxes")] : []),
    ].join(" and ");
    const parts = [`Imported ${came} on ${counted(this.images, "image", "images")}.`];
    if (this.boxes && this.images > 1) parts.push("Boxes become masks when their image is opened.");
    if (this.missing.length) parts.push(`${counted(this.missing.length, "image is", "images are")} not in the list: ${listed(this.missing)}.`);
    if (this.otherSizes.length) {
      parts.push(`${counted(this.otherSizes.length, "image has", "images have")} another size than the file says: ${listed(this.otherSizes)}.`);
    }
    if (this.unknownSizes.length) parts.push(`Open these once, and import again: ${listed(this.unknownSizes)}.`);
    if (this.unusable) parts.push(`${counted(this.unusable, "annotation has", "annotations have")} neither a mask nor a box in the image.`);
    for (const [reason, count] of this._reasons) parts.push(`${counted(count, "annotation was", "annotations were")} left out: ${reason}.`);
    return parts.join(" ");
  }

  /** Tells the user. @throws {Problem} if no image of the file was found */
  finish(app, fileName) {
    if (this.images === 0 && this.missing.length === this.total) {
      app.notice("import", "");
      const images = this.total === 1 ? "Its image is not" : `None of its ${this.total.toLocaleString("en")} images is`;
      throw new Problem("refused", `${fileName}: ${images} in the list (${listed(this.missing)}): add the images, or drop them together with the file.`);
    }
    app.notice("import", this.text);
  }
}
