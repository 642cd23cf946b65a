/**
 * The files that are no images but that the page understands, such as annotations. Whoever reads such a file registers here;
 * all files that are dropped or opened are offered to each importer, in order, before they are taken for images.
 *
 * @typedef {object} Importer
 * @property {(file: File, head: Uint8Array) => boolean} accepts  decides from the name and the file's first bytes
 * @property {(app: import("./app.js").App, file: File) => Promise<void>} run  throws a Problem with a sentence for the user
 * @property {string} [endings]  for the file dialog, such as ".json,.geojson"
 */

/** Bytes of a file that `accepts` is given; fewer if the file is shorter. */
export const HEAD_BYTES = 4096;

/** @type {Importer[]} */
export const importers = [];

/** @param {Importer} importer */
export function registerImporter(importer) {
  importers.push(importer);
}

/** @param {File} file @returns {Promise<Importer|null>} the first that accepts it */
export async function importerOf(file) {
  const head = new Uint8Array(await file.slice(0, HEAD_BYTES).arrayBuffer());
  return importers.find((importer) => importer.accepts(file, head)) ?? null;
}

/**
 * An image file may have several images in it, such as the pages of a stack.
 * @typedef {{name: string, file: Blob, view: object|null}} Piece  view: how the file was made from a scientific image
 * @type {(file: Blob, name: string) => Promise<Piece[]|AsyncIterable<Piece>>}
 */
let expander = (file, name) => Promise.resolve([{ name, file, view: null }]);

/** @param {typeof expander} expand used for every image file from now on */
export function setExpander(expand) {
  expander = expand;
}

/** @param {Blob} file @param {string} name @returns {Promise<Piece[]|AsyncIterable<Piece>>} */
export const expanded = (file, name) => expander(file, name);

/**
 * A file with several pages may be meant as one thing, such as a stack to track objects through.
 * @type {(file: Blob, name: string, pages: number) => Promise<boolean>}
 */
let stackTaker = () => Promise.resolve(false);

/** @param {typeof stackTaker} take asked about every file with several pages from now on; true: it has taken it */
export function setStackTaker(take) {
  stackTaker = take;
}

/** @param {Blob} file @param {string} name @param {number|null} pages  null: it is too large to be asked @returns {Promise<boolean>} */
export const takenAsStack = (file, name, pages) => stackTaker(file, name, pages);
