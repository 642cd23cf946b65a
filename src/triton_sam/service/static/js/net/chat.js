/** Requests to /v1/chat/completions, and their streaming answers. */
import { IMAGE } from "../core/chat.js";
import { EventStream } from "./event_stream.js";
import { Problem } from "./problems.js";

/** Bytes that are encoded at a time, so that a large file does not block the page; a multiple of three for base64. */
const PART = 3 * 2 ** 16;
/** The number of arguments that a function call accepts in every browser. */
const ARGUMENTS = 2 ** 15;
const END = "[DONE]";

const asText = new WeakMap();

/** @param {Blob} file @returns {Promise<Blob>} its data URL, cached as long as the file exists */
export function dataUrl(file) {
  if (!asText.has(file)) {
    const text = encoded(file);
    text.catch(() => asText.delete(file));
    asText.set(file, text);
  }
  return asText.get(file);
}

async function encoded(file) {
  const parts = [`data:${file.type.startsWith("image/") ? file.type : "image/png"};base64,`];
  for (let at = 0; at < file.size; at += PART) {
    const bytes = new Uint8Array(await file.slice(at, at + PART).arrayBuffer());
    let text = "";
    for (let from = 0; from < bytes.length; from += ARGUMENTS) text += String.fromCharCode(...bytes.subarray(from, from + ARGUMENTS));
    parts.push(btoa(text));
  }
  return new Blob(parts);
}

/**
 * @param {string} model @param {object[]} messages of messagesOf @param {Blob} file
 * @returns {Promise<Blob>} the request's body: JSON with the image inserted, never as one large string
 */
export async function chatBody(model, messages, file) {
  const json = JSON.stringify({ model, messages, stream: true, stream_options: { include_usage: true } });
  const at = json.indexOf(IMAGE); // the first one: it comes before any text of the user
  return new Blob([json.slice(0, at), await dataUrl(file), json.slice(at + IMAGE.length)]);
}

/**
 * @param {import("./service.js").Service} service @param {Blob} body @param {AbortSignal} signal
 * @returns {AsyncGenerator<{text: string, entities: unknown, finish: string|null, tokens: number}>}
 */
export async function* pieces(service, body, signal) {
  const reader = (await service.chat(body, signal)).getReader();
  const events = new EventStream();
  let isFinished = false;
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      if (done && isFinished) return;
      if (done) throw new Problem("cut_off", "The answer was cut off.");
      for (const data of events.push(value)) {
        if (data === END) return;
        const piece = pieceOf(data);
        isFinished ||= piece.finish !== null;
        yield piece;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch {
    signal.throwIfAborted();
    throw new Problem("unreachable", "The connection was lost before the answer was complete.");
  }
}

/** @param {string} data of one event */
export function pieceOf(data) {
  let event;
  try {
    event = JSON.parse(data);
  } catch {
    throw new Problem("cut_off", "The server's response cannot be parsed.");
  }
  if (event.error) throw new Problem(event.error.code ?? "refused", event.error.message);
  const [choice] = event.choices ?? [];
  return {
    text: choice?.delta?.content ?? "",
    entities: choice?.delta?.entities ?? null,
    finish: choice?.finish_reason ?? null,
    tokens: event.usage?.completion_tokens ?? 0,
  };
}
