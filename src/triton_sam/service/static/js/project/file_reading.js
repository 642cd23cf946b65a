/** Reads project files into the list. */
import { listed } from "../core/found.js";
import * as histories from "../core/history.js";
import { classesFrom, numberOf } from "../core/classes.js";
import { NameMatcher } from "../core/name_matching.js";
import { unzip } from "../export/unzip.js";
import { Problem } from "../net/problems.js";
import { newName } from "../storage/database.js";
import { PROJECT_JSON, PROJECT_SETTINGS, documentFrom, readProjectJson, withBlobs, withClassIds } from "./file_format.js";
import { hasWork, newItem, pageOf } from "./items.js";

const MISSING = "these images are neither in the project file nor in the list: add them, then the project file again";

/**
 * Adds what a project file has: its images with their work; without its images, the work of the images of that name.
 * @param {import("../app.js").App} app
 * @param {Blob} file a ZIP
 */
export async function readProject(app, file) {
  const entries = await unzip(file);
  const json = entries.get(PROJECT_JSON);
  if (!json) throw new Problem("refused", "there is no project of this page in this ZIP file: unpack it, and drop its images");
  const { settings, images } = readProjectJson(await (await json()).text());
  const ids = await takeSettings(app, settings);
  const matcher = new NameMatcher(app.items);
  const missing = [];
  let first = null;
  for (const entry of images) {
    const document = withClassIds(soundDocument(entry), ids);
    const record = entry.file ? await addImage(app, entries, entry, document) : await addWork(app, matcher.image(entry.name), entry, document);
    if (record) first ??= record;
    else missing.push(entry.name);
  }
  if (first && !app.picture) await app.openRecord(first);
  if (missing.length) throw new Problem("refused", `${MISSING} (${missing.join(", ")})`);
  app.announce(`The project was read: ${images.length} images.`);
}

function soundDocument({ document }) {
  try {
    return documentFrom(document);
  } catch {
    throw new Problem("refused", "this project file is damaged: export it again");
  }
}

async function addImage(app, entries, { name, file, type, view, width, height, isDone }, document) {
  const find = async (path, kind) => {
    const blob = await entries.get(path)?.();
    if (!blob) throw new Problem("refused", `${path} is missing in this project file: export it again`);
    return new Blob([blob], { type: kind });
  };
  const sources = new Map();
  withBlobs(view, (path, kind) => sources.set(path, { path, kind }));
  for (const [path, { kind }] of sources) sources.set(path, await find(path, kind));
  const history = histories.newHistory(document);
  const fields = { hasWork: hasWork(history), objectCount: listed(document).length, isDone: isDone === true };
  const item = newItem({ record: newName(), name, width, height, ...pageOf(view), ...fields });
  const picture = { file: await find(file, type), view: withBlobs(view ?? null, (path) => sources.get(path)) };
  if (!(await app.project.append(item, picture, history))) {
    throw new Problem("refused", `the browser's storage is full: ${name} and what follows it was not added`);
  }
  return item.record;
}

async function addWork(app, item, { isDone }, document) {
  const change = (before) => (before.things.length || document.things.length ? document : before);
  if (!item || !(await app.editDocument(item.record, change))) return null;
  if (isDone) app.project.setDone(true, item.record);
  return item.record;
}

/**
 * Takes the settings if the list is empty; known classes stay, those of the project are added.
 * @returns {Promise<Map<string, string>>} id of a class in the project -> its id here
 */
async function takeSettings(app, { classes, ...others }) {
  for (const [name, value] of Object.entries(others)) {
    if (!app.items.length && PROJECT_SETTINGS.includes(name)) await app.saveSetting(name, value);
  }
  app.dispatchEvent(new Event("settings"));
  const theirs = classesFrom(classes).list;
  const byName = app.classes.merge(theirs.map((one) => ({ name: one.name, colour: one.colour, number: numberOf(one) })));
  return new Map(theirs.map(({ id, name }) => [id, byName.get(name).id]));
}
