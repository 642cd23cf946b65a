/** Opens images and other files: from the file dialog, a drop, the clipboard, or the samples. */
import { importers } from "../importers.js";
import { filesOf, inOrder } from "../input/dropped_files.js";
import { sentence } from "../net/problems.js";
import { $, element, iconButton } from "./dom.js";
import { notice } from "./notices.js";

/** @param {import("../app.js").App} app */
export function startFiles(app) {
  const input = $("file");
  const images = input.accept;
  const choose = () => {
    input.accept = [images, ...importers.map(({ endings }) => endings).filter(Boolean)].join();
    input.click();
  };
  $("open").onclick = choose;
  $("open-too").onclick = choose;
  $("open-folder").onclick = () => $("folder").click();
  for (const source of [input, $("folder")]) {
    source.onchange = () => {
      const files = inOrder([...source.files]);
      source.value = ""; // otherwise the same file could not be opened again
      take(app, files);
    };
  }
  listenForDrops(app);
  document.addEventListener("paste", ({ target, clipboardData }) => {
    if (!target.matches?.("input, textarea")) takeFrom(app, clipboardData);
  });
  return { choose };
}

function listenForDrops(app) {
  let depth = 0;
  const mark = (by) => {
    depth = Math.max(0, depth + by);
    document.body.classList.toggle("dropping", depth > 0);
  };
  document.addEventListener("dragenter", () => mark(1));
  document.addEventListener("dragleave", () => mark(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(-Infinity);
    takeFrom(app, event.dataTransfer);
  });
}

async function takeFrom(app, data) {
  const hasFiles = [...(data?.types ?? [])].includes("Files");
  try {
    const files = await filesOf(data);
    if (files.length) take(app, files);
    else if (hasFiles) notice("picture", "There is no file in this folder.");
  } catch {
    notice("picture", "The folder cannot be read. Open its files with the button instead.");
  }
}

function take(app, files) {
  if (files.length) app.addFiles(files);
}

/** @param {import("../app.js").App} app */
export async function startSamples(app) {
  const dialog = $("samples-dialog");
  $("show-samples").onclick = () => {
    dialog.showModal();
    showEarlier(app, dialog);
  };
  const open = (sample) => {
    dialog.close();
    app.open(app.connection.persist(() => app.service.sample(sample.address)), sample.file, { isSample: true });
  };
  try {
    const samples = await app.connection.persist(() => app.service.samples());
    for (const shelf of [$("shelf"), $("samples-list")]) shelf.replaceChildren(...samples.map((sample) => card(sample, app, open)));
  } catch (error) {
    notice("samples", sentence(error));
  }
}

function card(sample, app, open) {
  const picture = element("img", { src: app.service.address(sample.address), alt: "", loading: "lazy", decoding: "async" });
  const title = sample.credit ? `${sample.title}: ${sample.credit}` : sample.title;
  const button = element("button", { type: "button", class: "sample", title, "data-sample": sample.name });
  button.append(picture, element("span", {}, sample.title));
  button.onclick = () => open(sample);
  return element("li", {}, button);
}

/** Lists of images that are not open in this tab. */
async function showEarlier(app, dialog) {
  const { project } = app;
  const lists = await project.store.earlier();
  const open = (list) => {
    dialog.close();
    project.switchTo(list);
  };
  const remove = async (list, title) => {
    if (!confirm(`Delete ${title} and all work on it from this browser?`)) return;
    if (!(await project.store.removeProject(list))) notice("kept", "This list is open in another tab.");
    showEarlier(app, dialog);
  };
  $("earlier").hidden = lists.length === 0;
  $("earlier-list").replaceChildren(
    ...lists.map(({ project: list, name, count, saved }) => {
      const title = count === 1 ? name : `${name} and ${count - 1} more`;
      const when = new Date(saved).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
      const button = element("button", { type: "button", class: "link", onclick: () => open(list) }, title);
      const bin = iconButton("delete", `Delete ${title}`, () => remove(list, title));
      return element("li", {}, button, element("span", { class: "fine" }, ` ${when}`), bin);
    }),
  );
}
