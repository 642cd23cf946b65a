import assert from "node:assert/strict";

import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { HoverSocket } from "../../src/triton_sam/service/static/js/net/hover_socket.js";
import { drawing, maskOf, settled } from "./helpers.js";

export const mask = maskOf(drawing("#.", ".#"));
export const result = { masks: [{ data: toCocoRle(mask), score: 0.75 }], timings_ms: { total: 4.5 } };
export const question = (x) => ({ body: { points: [[x, 0]] }, mark: `question ${x}` });

/** A socket whose other end is the test. */
export class FakeSocket {
  static OPEN = 1;
  readyState = 0;
  sent = [];

  send(text) {
    assert.equal(this.readyState, FakeSocket.OPEN, "a browser throws here");
    this.sent.push(JSON.parse(text));
  }

  /** As in a browser it is closed only later, when the other end has heard of it. */
  close() {
    this.readyState = 2;
  }

  opens() {
    this.readyState = FakeSocket.OPEN;
    this.onopen();
  }

  says(message) {
    this.onmessage({ data: JSON.stringify(message) });
  }

  answers() {
    this.says({ id: this.sent.at(-1).id, result });
  }

  goes() {
    this.readyState = 3;
    this.onclose();
  }
}
globalThis.WebSocket = FakeSocket;

/** @returns a hover socket, the sockets that it made, what was shown, and time in the test's hand */
export function prepared(context) {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const [sockets, shown, refused] = [[], [], []];
  const service = {
    hoverSocket: () => {
      sockets.push(new FakeSocket());
      return sockets.at(-1);
    },
    models: async () => [],
  };
  const connection = { state: "ready", finds: 0, found: () => (connection.finds += 1), persist: (request) => request() };
  const hover = new HoverSocket(
    service,
    connection,
    (asked, answer) => shown.push({ mark: asked.mark, ...answer }),
    (asked, problem) => refused.push({ mark: asked.mark, problem }),
  );
  const pass = async (milliseconds) => {
    context.mock.timers.tick(milliseconds);
    await settled();
  };
  return { hover, sockets, shown, refused, service, connection, pass };
}

export function opened(context) {
  const all = prepared(context);
  all.hover.connect();
  all.sockets[0].opens();
  return { ...all, socket: all.sockets[0] };
}

export const places = ({ sent }) => sent.map(({ points }) => points[0][0]);
export const marks = (shown) => shown.map(({ mark }) => mark);
