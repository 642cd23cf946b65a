/** Requests to /v1/everything, and the messages of their streams. */
import { EventStream } from "./event_stream.js";
import { Problem } from "./problems.js";

/** Milliseconds without a message; the server sends one every few seconds. */
const SILENCE = 60_000;

/**
 * @typedef {{kind: "begin"}|{kind: "progress"|"result", document: object}} Message  "begin": a search begins, or begins anew
 *
 * @param {object} server
 * @param {import("./service.js").Service} server.service
 * @param {import("./connection.js").Connection} server.connection
 * @param {import("./image_keys.js").ImageKeys} server.images
 * @param {object} options of the search, by the API's names
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<Message>} the last one is the result
 */
export async function* messages({ service, connection, images }, options, signal) {
  for (;;) {
    const key = await unlessAborted(images.ready(), signal);
    const body = { image_key: key, model: images.model, everything: options, format: "rle" };
    try {
      const stream = await unlessAborted(connection.persist(() => service.everything(body, signal), signal), signal);
      yield { kind: "begin" };
      yield* messagesOf(stream, signal);
      return;
    } catch (error) {
      signal.throwIfAborted();
      if (error?.code === "cut_off") connection.lost(new Problem("unreachable")); // it looks whether the server is there
      if (error?.code !== "image_expired") throw error;
      images.forget(key);
    }
  }
}

/** Whoever waits for a server that is away can stop waiting. @template T @param {Promise<T>} promise @param {AbortSignal} signal @returns {Promise<T>} */
export function unlessAborted(promise, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", stop));
  });
}

/** @param {ReadableStream<Uint8Array>} stream @param {AbortSignal} signal @returns {AsyncGenerator<Message>} */
export async function* messagesOf(stream, signal) {
  const reader = stream.getReader();
  const events = new EventStream();
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      if (done) throw new Problem("cut_off", "The search ended before it was complete. Find again.");
      for (const { name, data } of events.events(value)) {
        if (name === "error") throw problemIn(data);
        if (name !== "progress" && name !== "result") continue;
        yield { kind: name, document: parsed(data) };
        if (name === "result") return;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function read(reader, signal) {
  let timer;
  const silence = new Promise((_, reject) => (timer = setTimeout(reject, SILENCE)));
  try {
    return await Promise.race([reader.read(), silence]);
  } catch {
    signal.throwIfAborted();
    throw new Problem("cut_off", "The connection was lost before everything was found. Find again.");
  } finally {
    clearTimeout(timer);
  }
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Problem("unreadable", "The server's masks cannot be read.");
  }
}

function problemIn(data) {
  const { error } = parsed(data);
  return new Problem(error?.code ?? "refused", error?.message ?? "");
}
