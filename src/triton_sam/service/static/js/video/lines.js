/** Documents of a stream, one a line (NDJSON), from bytes, however they are cut. */
import { Problem } from "../net/problems.js";

export class Lines {
  constructor() {
    this._decoder = new TextDecoder();
    this._rest = "";
  }

  /** @param {Uint8Array} bytes @returns {string[]} the lines that are complete now, without empty ones */
  push(bytes) {
    const lines = (this._rest + this._decoder.decode(bytes, { stream: true })).split("\n");
    this._rest = lines.pop();
    return lines.filter((line) => line.trim());
  }
}

/**
 * @param {ReadableStream<Uint8Array>} stream @param {AbortSignal} signal
 * @returns {AsyncGenerator<object>} until the one that says how it ended, which is the last
 */
export async function* documentsOf(stream, signal) {
  const reader = stream.getReader();
  const lines = new Lines();
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      if (done) throw new Problem("cut_off", "The connection was lost while objects were tracked. Track again.");
      for (const line of lines.push(value)) {
        const document = parsed(line);
        if (document.error) throw new Problem(document.error.code ?? "refused", document.error.message ?? "");
        yield document;
        if (document.done || document.cancelled) return;
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
    return { done: true, value: undefined };
  }
}

function parsed(line) {
  try {
    return JSON.parse(line);
  } catch {
    throw new Problem("unreadable", "The server's masks cannot be read.");
  }
}
