/** Opens images: from a file, a drop, the clipboard, or the samples. */
import { sentence } from "../net/problems.js";
import { $, element } from "./dom.js";
import { notice } from "./notices.js";

/** Some systems do not report a MIME type for these. */
const IMAGE_NAME = /\.(png|jpe?g|tiff?|webp|bmp|gif|jp2|j2k|p[gpn]m)$/i;

/** @param {import("../app.js").App} app */
export function startFiles(app) {
  const input = $("file");
  const open = (file) => file && app.open(file, file.name || "pasted image.png");
  const choose = () => input.click();
  $("open").onclick = choose;
  $("open-too").onclick = choose;
  input.onchange = () => {
    open(input.files[0]);
    input.value = ""; // otherwise the same file could not be opened again
  };

  const stage = $("stage");
  let depth = 0;
  const mark = (by) => {
    depth = Math.max(0, depth + by);
    stage.classList.toggle("dropping", depth > 0);
  };
  document.addEventListener("dragenter", () => mark(1));
  document.addEventListener("dragleave", () => mark(-1));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(-Infinity);
    openFirst(event.dataTransfer, open);
  });
  document.addEventListener("paste", (event) => {
    if (!event.target.matches?.("input, textarea")) openFirst(event.clipboardData, open);
  });
  return { choose };
}

function openFirst(data, open) {
  const files = [...(data?.files ?? [])];
  const image = files.find((file) => file.type.startsWith("image/") || IMAGE_NAME.test(file.name));
  if (image) open(image);
  else if (files.length) notice("picture", "This is not an image: drop a PNG, JPEG, WebP or TIFF file.");
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
    app.open(app.connection.persist(() => app.service.sample(sample.address)), sample.file);
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

async function showEarlier(app, dialog) {
  const entries = await app.earlier();
  const open = (record) => {
    dialog.close();
    app.reopen(record);
  };
  $("earlier").hidden = entries.length === 0;
  $("earlier-list").replaceChildren(
    ...entries.map(({ record, name, saved }) => {
      const when = new Date(saved).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
      const button = element("button", { type: "button", class: "link", onclick: () => open(record) }, name);
      return element("li", {}, button, element("span", { class: "fine" }, ` ${when}`));
    }),
  );
}
