/** Errors of requests to the server, and the sentence that the page shows for each. */

export class Problem extends Error {
  /**
   * @param {string} code  the service's own ("image_expired", "queue_full", ...), or "unreachable" if there was no response
   * @param {string} detail  the service's message
   */
  constructor(code, detail = "") {
    super(detail || code);
    this.code = code;
    this.detail = detail;
    /** Seconds to wait before a retry (Retry-After); 0 if the service sent none. */
    this.retryAfter = 0;
  }

  /** Whether a retry may succeed in a moment. */
  get passes() {
    return ["unreachable", "unavailable", "queue_full", "deadline_exceeded", "request_timeout"].includes(this.code);
  }
}

const SENTENCES = {
  unreachable: "The server does not respond. Your work is kept, and the page continues when it is back.",
  unavailable: "The server is restarting. Your work is kept, and the page continues in a moment.",
  queue_full: "The server is busy. Trying again.",
  deadline_exceeded: "The server did not respond in time. Trying again.",
  request_timeout: "The connection is too slow for this image. Trying again.",
  not_authorised: "The server does not take this token.",
  forgetful: "The server forgets the image as soon as it is encoded: its cache is too small, or there are several servers.",
  internal_error: "The server failed on this request. Try again, or try another point.",
  unsupported: "This model does not support this kind of prompt. Choose another model.",
};

/** @param {unknown} error @returns {string} one sentence for the user */
export function sentence(error) {
  if (!(error instanceof Problem)) return "Something in this page went wrong. Reload it; your work is kept.";
  if (error.code === "too_large") return tooLarge(error.detail);
  return SENTENCES[error.code] ?? asSentence(error.detail || "the server refused that");
}

/** The service's messages end with the fix; where they say "send", the user of the page opens a file. */
function tooLarge(detail) {
  const reason = /^the image has (.*): send (.*)$/.exec(detail);
  if (!reason) return "This image is too large for the server, or for a proxy before it. Open a smaller one.";
  return `This image is too large for the server: it has ${reason[1]}. Open ${reason[2]}.`;
}

/** @param {string} text @returns {string} begun and ended as a sentence */
export function asSentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

/** @param {number} status of a response without success @param {string} text its body @returns {Problem} */
export function problemOf(status, text) {
  try {
    const { code, message } = JSON.parse(text).error;
    if (typeof code === "string" && typeof message === "string") return new Problem(code, message);
  } catch {
    // Not JSON, or not the service's.
  }
  // Not a response of the service: from a proxy, or from a server that is shutting down.
  if (status === 413) return new Problem("too_large");
  return new Problem(status >= 400 && status < 500 ? "refused" : "unavailable");
}
