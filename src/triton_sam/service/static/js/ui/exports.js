/** The export buttons: each makes one file of the objects that are visible. */
import * as documents from "../core/document.js";
import { safeFileName, uniqueNames } from "../core/file_names.js";
import { area } from "../core/mask.js";
import { cocoDocument } from "../export/coco.js";
import { geoJson } from "../export/geojson.js";
import { labelImage, maskImage } from "../export/label_image.js";
import { slide } from "../export/slide.js";
import { zip } from "../export/zip.js";
import { $, element } from "./dom.js";
import { notice } from "./notices.js";

const json = (document, type) => new Blob([JSON.stringify(document)], { type });

/** Kind -> [ending of the file's name, what makes it]. */
const KINDS = {
  masks: ["masks.zip", masksOf],
  labels: ["labels.png", ({ picture, objects }) => labelImage(picture, objects)],
  coco: ["coco.json", ({ picture, objects }) => json(cocoDocument(picture, objects), "application/json")],
  geojson: ["polygons.geojson", ({ picture, objects }) => json(geoJson(picture, objects), "application/geo+json")],
  slide: ["slide.png", ({ pixels, objects, look }) => slide(pixels, objects, look)],
};

/**
 * @param {import("../app.js").App} app
 * @param {import("../draw/stage.js").Stage} stage
 */
export function startExports(app, stage) {
  const buttons = [...$("exports").querySelectorAll("[data-export]")];
  app.addEventListener("document", () => {
    const isEmpty = objectsOf(app.document).length === 0;
    for (const button of buttons) button.disabled = isEmpty;
  });
  for (const button of buttons) {
    button.onclick = async () => {
      const [ending, make] = KINDS[button.dataset.export];
      const { picture } = app;
      const objects = objectsOf(app.document);
      const waiting = app.document.things.filter((thing) => thing.visible && documents.isWaiting(thing));
      button.disabled = true;
      try {
        const blob = await make({ picture, objects, pixels: stage.picture, look: stage.scene.look });
        download(blob, `${stemOf(picture.name)}-${ending}`);
        notice("export", waiting.length ? `${waiting[0].name} still waits for its mask, and is exported as it was.` : "");
      } catch {
        notice("export", "This file could not be made. Try again, or hide some objects first.");
      }
      button.disabled = false;
    };
  }
}

/** What is visible and has a mask, the bottom one first. */
function objectsOf(document) {
  return document.things
    .filter((thing) => thing.visible)
    .map((thing) => ({
      name: thing.name,
      colour: thing.colour,
      mask: documents.maskOf(thing),
      score: documents.chosen(thing.answer?.candidates, thing.pick)?.score ?? null,
    }))
    .filter(({ mask }) => mask && area(mask) > 0);
}

async function masksOf({ objects }) {
  const names = uniqueNames(objects.map(({ name }) => safeFileName(name, "object")));
  const files = [];
  for (const [index, { mask }] of objects.entries()) files.push({ name: `${names[index]}.png`, blob: await maskImage(mask) });
  return zip(files);
}

const stemOf = (name) => safeFileName(name.replace(/\.[^.]*$/, ""), "image");

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}
