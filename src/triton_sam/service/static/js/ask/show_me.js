/** Looks for what an answer is about: in the answer's own boxes, or by asking the model where it is. */
import { dataUrl } from "../net/chat.js";
import { Problem } from "../net/problems.js";
import { addRegions, regionsIn, regionsOf } from "./regions.js";

/** Milliseconds: the model may have to be loaded first. */
const PATIENCE = 600_000;

/**
 * @param {import("../app.js").App} app
 * @param {import("../core/chat.js").Turn} turn
 * @param {import("../core/grounding.js").Found[]} found boxes of its answer
 * @param {AbortSignal} signal
 * @returns {Promise<string>} a sentence, if there is nothing to show
 */
export async function showMe(app, turn, found, signal) {
  const regions = found.length ? regionsOf(found) : await asked(app, turn, signal);
  signal.throwIfAborted();
  if (!regions.length) return `${turn.model.id} does not say where that is in the image. Ask for one thing: where is it?`;
  app.change((document) => addRegions(document, regions));
  app.announce(`Objects: ${regions.map(({ label }) => label).join(", ")}.`);
  return "";
}

async function asked({ picture, images, service, connection }, { question, model }, signal) {
  const rest = JSON.stringify({ question, model: model.id, segmenter: images.model, format: "rle" });
  const body = new Blob(['{"image":"', await dataUrl(picture.file), '",', rest.slice(1)]);
  const headers = { "Content-Type": "application/json" };
  const answer = await connection.persist(() => service.json("v1/ground", { method: "POST", body, headers, signal, patience: PATIENCE }), signal);
  try {
    return regionsIn(answer, picture);
  } catch {
    throw new Problem("unreadable", "The server's masks cannot be read.");
  }
}
