/** What can go wrong between the page and the server, and the calm sentence for each. */

export class Problem extends Error {
  /**
   * @param {string} code  the service's own ("image_expired", "queue_full", ...), or "unreachable" where nothing answered
   * @param {string} detail  the service's own sentence
   */
  constructor(code, detail = "") {
    super(detail || code);
    this.code = code;
    this.detail = detail;
  }

  /** Whether the same request may well succeed in a moment. */
  get passes() {
    return ["unreachable", "unavailable", "queue_full", "deadline_exceeded", "request_timeout"].includes(this.code);
  }
}

const SENTENCES = {
  unreachable: "The server does not answer. Your work is kept, and the page goes on when it is back.",
  unavailable: "The server is restarting. Your work is kept, and the page goes on in a moment.",
  queue_full: "The server is busy. Trying again.",
  deadline_exceeded: "The server takes longer than it should. Trying again.",
  request_timeout: "The connection is too slow for this image. Trying again.",
  not_authorised: "The server does not take this token.",
  image_expired: "The server has forgotten the image, so it is encoded once more.",
  internal_error: "The server failed on this one. Try again, or another point.",
  unsupported: "This model does not take such a prompt. Choose another model.",
};

/** @param {unknown} error @returns {string} one sentence for a person */
export function sentence(error) {
  if (!(error instanceof Problem)) return "Something in this page went wrong. Reload it; your work is kept.";
  if (error.code === "too_large") return `This image is too large for the server: ${ownWords(error.detail)}`;
  return SENTENCES[error.code] ?? capital(error.detail || "The server refused that.");
}

/** The service's messages end with the mend; "send" is its word for what a person here does by opening a file. */
const ownWords = (detail) => capital(detail.replace(/^the image has /, "it has ").replace(/: send /, ". Open "), false);

function capital(text, up = true) {
  const whole = /[.!?]$/.test(text) ? text : `${text}.`;
  return up ? whole.charAt(0).toUpperCase() + whole.slice(1) : whole;
}

/** @param {Response|{status: number, text: string}} answer */
export function problemOf(status, text) {
  try {
    const { code, message } = JSON.parse(text).error;
    return new Problem(code, message);
  } catch {
    // Not the service's own words: a proxy in between, or a server that is going down.
    return new Problem(status >= 500 || status === 0 ? "unavailable" : status === 413 ? "too_large" : "refused", "");
  }
}
