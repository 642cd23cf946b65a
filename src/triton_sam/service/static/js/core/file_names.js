/** File names from text that users typed. */

// In UTF-16 units of 3 bytes at most, so that name and suffix stay within the 255 bytes of most file systems.
const LONGEST = 80;
const FORBIDDEN = /[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\u202a-\u202e\u2066-\u2069\ufeff<>:"/\\|?*]/gu;
// Windows takes these for devices, whatever follows the first dot.
const DEVICE = /^(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])(?=\s*(\.|$))/iu;

/**
 * A name that every file system accepts: no path, no control or reserved characters, no hidden file.
 *
 * @param {string} text The typed text; letters of all scripts are kept.
 * @param {string} fallback Used if nothing of the text is left.
 * @returns {string} At most 80 characters; without the file's suffix.
 */
export function safeFileName(text, fallback) {
  const clean = trimmed(String(text ?? "").normalize("NFC").replace(FORBIDDEN, "_").replace(/\s+/gu, " "));
  if (/^[_. ]*$/u.test(clean)) return fallback;
  const name = DEVICE.test(clean) ? `_${clean}` : clean;
  // Half a surrogate pair at the end would be invalid Unicode.
  return trimmed(name.slice(0, LONGEST).replace(/[\ud800-\udbff]$/, ""));
}

/** @param {string} name of an image @returns {string} without its ending; of a page ("stack.tif#7") with its number ("stack-7") */
export function stemOfName(name) {
  const [, file, page] = /^(.*?)(?:#(\d+))?$/s.exec(name);
  const stem = file.replace(/\.[^./]*$/, "");
  return page ? `${stem}-${page}` : stem;
}

/** Leading dots hide a file, and Windows drops dots and spaces at the end. */
function trimmed(name) {
  return name.replace(/^[. ]+|[. ]+$/gu, "");
}

/**
 * Adds numbers to duplicate names: "cell", "cell" -> "cell", "cell-2". Upper and lower case are equal, as
 * on Windows and macOS. The first of each name stays as it is.
 *
 * @param {Array<string>} names Without the files' endings.
 * @returns {Array<string>} In the same order, all different.
 */
export function uniqueNames(names) {
  const keyOf = (name) => name.normalize("NFC").toLowerCase();
  const taken = new Set(names.map(keyOf));
  const lastNumbers = new Map();
  return names.map((name) => {
    const key = keyOf(name);
    let number = lastNumbers.get(key);
    if (number === undefined) {
      lastNumbers.set(key, 1);
      return name;
    }
    do number += 1;
    while (taken.has(`${key}-${number}`));
    lastNumbers.set(key, number);
    taken.add(`${key}-${number}`);
    return `${name}-${number}`;
  });
}
