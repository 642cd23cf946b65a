/** The files of a drop, of a file dialog or of the clipboard, folders opened. */

/** Files that systems leave in folders. */
const SYSTEM_FILE = /^(\.|Thumbs\.db$|desktop\.ini$)/i;
const inNaturalOrder = new Intl.Collator("en", { numeric: true }).compare;
const pathOf = (file) => file.pathInFolder ?? (file.webkitRelativePath || file.name);

/**
 * Must be called while the event is handled: afterwards its data are gone.
 * @param {DataTransfer|null} data
 * @returns {Promise<File[]>} in natural order (a2 before a10); those of folders have `pathInFolder`
 */
export async function filesOf(data) {
  const entries = [...(data?.items ?? [])].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.some(({ isDirectory }) => isDirectory)) return inOrder([...(data?.files ?? [])]);
  const lists = await Promise.all(entries.map((entry) => (entry.isDirectory ? filesIn(entry, "") : [fileOf(entry)])));
  return inOrder(await Promise.all(lists.flat()));
}

/** @param {File[]} files @returns {File[]} without the system's own, in natural order */
export function inOrder(files) {
  const wanted = files.filter(({ name }) => !SYSTEM_FILE.test(name));
  return wanted.sort((a, b) => inNaturalOrder(pathOf(a), pathOf(b)));
}

const fileOf = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));

async function filesIn(folder, path) {
  const reader = folder.createReader();
  const found = [];
  for (;;) {
    const entries = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!entries.length) return found; // a reader gives them in parts of a hundred
    for (const entry of entries) {
      const name = `${path}${entry.name}`;
      if (entry.isDirectory) found.push(...(await filesIn(entry, `${name}/`)));
      else found.push(Object.assign(await fileOf(entry), { pathInFolder: name }));
    }
  }
}
