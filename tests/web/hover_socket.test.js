import assert from "node:assert/strict";
import test from "node:test";

import { toCocoRle } from "../../src/triton_sam/service/static/js/core/mask.js";
import { HoverSocket } from "../../src/triton_sam/service/static/js/net/hover_socket.js";
import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { deferred, drawing, maskOf, oneOf, randomNumbers, settled } from "./helpers.js";

const mask = maskOf(drawing("#.", ".#"));
const result = { masks: [{ data: toCocoRle(mask), score: 0.75 }], timings_ms: { total: 4.5 } };
const question = (x) => ({ body: { points: [[x, 0]] }, mark: `question ${x}` });

/** A socket whose other end is the test. */
class FakeSocket {
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
function prepared(context) {
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

function opened(context) {
  const all = prepared(context);
  all.hover.connect();
  all.sockets[0].opens();
  return { ...all, socket: all.sockets[0] };
}

const places = ({ sent }) => sent.map(({ points }) => points[0][0]);
const marks = (shown) => shown.map(({ mark }) => mark);

test("the first question opens the socket, and is sent when it is open", (context) => {
  const { hover, sockets } = prepared(context);
  hover.ask(question(1));
  hover.ask(question(2));
  assert.equal(sockets.length, 1);
  assert.deepEqual(sockets[0].sent, []);
  sockets[0].opens();
  assert.deepEqual(places(sockets[0]), [2]);
});

test("a socket that was opened early is used", (context) => {
  const { hover, sockets, socket } = opened(context);
  hover.connect();
  hover.ask(question(1));
  assert.deepEqual([sockets.length, places(socket)], [1, [1]]);
});

test("an answer is shown with its question, its masks and its times", (context) => {
  const { hover, socket, shown } = opened(context);
  hover.ask(question(1));
  assert.deepEqual(socket.sent, [{ points: [[1, 0]], id: 1 }]);
  socket.answers();
  const [{ mark, candidates, serverMs, roundTripMs }] = shown;
  assert.deepEqual([mark, candidates, serverMs], ["question 1", [{ mask, score: 0.75 }], 4.5]);
  assert.ok(roundTripMs >= 0);
});

test("one question is on its way at a time, and of those that come meanwhile the newest is asked", (context) => {
  const { hover, socket, shown } = opened(context);
  for (const x of [1, 2, 3, 4]) hover.ask(question(x));
  assert.deepEqual(places(socket), [1]);
  socket.answers();
  assert.deepEqual(places(socket), [1, 4]);
  socket.answers();
  assert.deepEqual(places(socket), [1, 4]);
  assert.deepEqual(marks(shown), ["question 1", "question 4"]);
});

test("whatever the mouse does, one is on its way, no dropped one is shown, and the newest is asked", (context) => {
  const { hover, socket, shown } = opened(context);
  const random = randomNumbers(61);
  let [answered, isDropped] = [0, false];
  const answer = () => {
    if (answered === socket.sent.length) return;
    const before = shown.length;
    answered += 1;
    socket.answers();
    assert.equal(shown.length - before, isDropped ? 0 : 1);
    isDropped = false;
  };
  for (let turn = 0; turn < 2000; turn += 1) {
    const move = oneOf(random, ["ask", "ask", "ask", "answer", "answer", "drop"]);
    if (move === "ask") hover.ask(question(turn));
    else if (move === "answer") answer();
    else {
      hover.drop();
      isDropped = answered < socket.sent.length;
    }
    assert.ok(socket.sent.length - answered <= 1);
  }
  hover.ask(question(2000));
  while (answered < socket.sent.length) answer();
  assert.equal(shown.at(-1).mark, "question 2000");
  const asked = places(socket);
  assert.equal(asked.at(-1), 2000);
  assert.deepEqual(asked, [...asked].sort((a, b) => a - b), "never an older one after a newer one");
});

test("a dropped answer is not shown, a dropped question is not asked, and the next one is", (context) => {
  const { hover, socket, shown } = opened(context);
  hover.ask(question(1));
  hover.ask(question(2));
  hover.drop();
  socket.answers();
  assert.deepEqual([places(socket), shown], [[1], []]);
  hover.ask(question(3));
  hover.drop();
  hover.ask(question(4));
  socket.answers();
  socket.answers();
  assert.deepEqual([places(socket), marks(shown)], [[1, 3, 4], ["question 4"]]);
});

test("a refusal is told with its question, unless that was dropped, and the next one is asked", (context) => {
  const { hover, socket, shown, refused } = opened(context);
  hover.ask(question(1));
  hover.ask(question(2));
  const error = { code: "queue_full", message: "try again" };
  socket.says({ id: 1, error });
  assert.equal(refused[0].mark, "question 1");
  assert.ok(refused[0].problem instanceof Problem);
  assert.deepEqual([refused[0].problem.code, refused[0].problem.detail], ["queue_full", "try again"]);
  assert.deepEqual(places(socket), [1, 2]);
  hover.drop();
  socket.says({ id: 2, error });
  assert.deepEqual([refused.length, shown.length], [1, 0]);
});

test("a socket that does not know the image is left for a new one, which may reach another server", async (context) => {
  const { hover, socket, sockets, refused } = opened(context);
  hover.ask(question(1));
  hover.ask(question(2));
  socket.says({ id: 1, error: { code: "image_expired", message: "send it again" } });
  assert.deepEqual([refused.length, socket.readyState, places(socket)], [1, 2, [1]]);
  socket.goes();
  await settled();
  context.mock.timers.tick(250);
  sockets.at(-1).opens();
  assert.deepEqual([sockets.length, places(sockets.at(-1))], [2, [2]]);
});

test("an answer to another question is not taken", (context) => {
  const { hover, socket, shown, connection } = opened(context);
  hover.ask(question(1));
  socket.says({ id: 7, result });
  socket.says({ result });
  assert.deepEqual([shown, connection.finds], [[], 0]);
  socket.answers();
  socket.answers();
  assert.deepEqual(marks(shown), ["question 1"]);
});

test("an answer tells that the server is there, also one that nobody wants any more; a refusal does not", (context) => {
  const { hover, socket, connection, shown } = opened(context);
  hover.ask(question(1));
  assert.equal(connection.finds, 0);
  socket.answers();
  assert.equal(connection.finds, 1);
  hover.ask(question(2));
  hover.drop();
  socket.answers();
  assert.deepEqual([connection.finds, marks(shown)], [2, ["question 1"]]);
  hover.ask(question(3));
  socket.says({ id: 3, error: { code: "queue_full", message: "64 requests wait: try again" } });
  assert.equal(connection.finds, 2);
});

test("what was on its way when the socket closed is asked again on the next one", async (context) => {
  const { hover, sockets, socket, shown, pass } = opened(context);
  hover.ask(question(1));
  socket.goes();
  await settled();
  await pass(250);
  assert.equal(sockets.length, 2);
  sockets[1].opens();
  assert.deepEqual(sockets[1].sent, [{ points: [[1, 0]], id: 2 }]);
  sockets[1].answers();
  assert.deepEqual(marks(shown), ["question 1"]);
});

test("a newer question is asked instead, and a dropped one is not asked again", async (context) => {
  const { hover, sockets, socket, pass } = opened(context);
  hover.ask(question(1));
  hover.ask(question(2));
  socket.goes();
  await settled();
  await pass(250);
  sockets[1].opens();
  assert.deepEqual(places(sockets[1]), [2]);
  hover.drop();
  sockets[1].goes();
  await settled();
  await pass(500);
  sockets[2].opens();
  assert.deepEqual(sockets[2].sent, []);
});

test("a socket is opened again only when the server answers", async (context) => {
  const { sockets, socket, service, pass } = opened(context);
  const answer = deferred();
  service.models = () => answer.promise;
  socket.goes();
  await pass(600_000);
  assert.equal(sockets.length, 1);
  answer.resolve([]);
  await settled();
  await pass(250);
  assert.equal(sockets.length, 2);
});

test("a server that refuses the plain request does not end it", async (context) => {
  const { sockets, socket, service, pass } = opened(context);
  service.models = () => Promise.reject(new Problem("internal_error"));
  socket.goes();
  await settled();
  await pass(250);
  assert.equal(sockets.length, 2);
});

test("sockets that close at once are opened ever more seldom, until one says something", async (context) => {
  const { hover, sockets, pass } = prepared(context);
  hover.connect();
  for (const pause of [250, 500, 1000, 2000, 4000, 8000, 16_000, 20_000, 20_000]) {
    const before = sockets.length;
    sockets.at(-1).goes();
    await settled();
    await pass(pause - 1);
    assert.equal(sockets.length, before, `before ${pause} ms`);
    await pass(1);
    assert.equal(sockets.length, before + 1, `after ${pause} ms`);
  }
  sockets.at(-1).opens();
  hover.ask(question(1));
  sockets.at(-1).answers();
  const before = sockets.length;
  sockets.at(-1).goes();
  await settled();
  await pass(249);
  assert.equal(sockets.length, before);
  await pass(1);
  assert.equal(sockets.length, before + 1);
});

test("a socket that opens but says nothing does not shorten the pause", async (context) => {
  const { sockets, socket, pass } = opened(context);
  socket.goes();
  await settled();
  await pass(250);
  sockets[1].opens();
  sockets[1].goes();
  await settled();
  await pass(499);
  assert.equal(sockets.length, 2);
  await pass(1);
  assert.equal(sockets.length, 3);
});

test("a mouse that moves meanwhile does not shorten the pause", async (context) => {
  const { hover, sockets, pass } = prepared(context);
  hover.connect();
  for (const pause of [250, 500, 1000]) {
    sockets.at(-1).goes();
    await settled();
    await pass(pause);
  }
  sockets.at(-1).goes();
  await settled();
  const before = sockets.length;
  for (const x of [1, 2, 3]) {
    hover.ask(question(x));
    hover.connect();
    await settled();
  }
  assert.equal(sockets.length, before, "of the pause of 2 s nothing has passed");
  await pass(1999);
  assert.equal(sockets.length, before);
  await pass(1);
  assert.equal(sockets.length, before + 1);
  sockets.at(-1).opens();
  assert.deepEqual(places(sockets.at(-1)), [3]);
});

test("a mouse that moves while it is found out why the socket closed opens nothing", async (context) => {
  const { hover, sockets, socket, service, pass } = opened(context);
  const answer = deferred();
  service.models = () => answer.promise;
  socket.goes();
  for (const x of [1, 2]) {
    hover.ask(question(x));
    await pass(10_000);
  }
  assert.equal(sockets.length, 1);
  answer.resolve([]);
  await settled();
  await pass(250);
  sockets[1].opens();
  assert.deepEqual([sockets.length, places(sockets[1])], [2, [2]]);
});

test("a mouse that moves while the server is away opens nothing", async (context) => {
  const { hover, sockets, socket, connection, pass } = opened(context);
  const back = deferred();
  connection.persist = () => back.promise;
  connection.state = "away";
  socket.goes();
  await settled();
  for (const x of [1, 2, 3]) {
    hover.ask(question(x));
    await pass(20_000);
  }
  assert.equal(sockets.length, 1);
  connection.state = "ready";
  back.resolve();
  await settled();
  await pass(250);
  sockets[1].opens();
  assert.deepEqual([sockets.length, places(sockets[1])], [2, [3]]);
});

for (const state of ["away", "locked"]) {
  test(`while the server is ${state} no socket is opened`, (context) => {
    const { hover, sockets, connection } = prepared(context);
    connection.state = state;
    hover.connect();
    hover.ask(question(1));
    assert.equal(sockets.length, 0);
    connection.state = "ready";
    hover.connect();
    sockets[0].opens();
    assert.deepEqual(places(sockets[0]), [1]);
  });

  test(`a pause that ends while the server is ${state} opens no socket`, async (context) => {
    const { hover, sockets, socket, connection, pass } = opened(context);
    hover.ask(question(1));
    socket.goes();
    await settled();
    connection.state = state;
    await pass(600_000);
    hover.ask(question(2));
    assert.equal(sockets.length, 1);
    connection.state = "ready";
    hover.connect();
    sockets[1].opens();
    assert.deepEqual([sockets.length, places(sockets[1])], [2, [2]]);
  });
}

test("a socket that is open goes on while requests fail", (context) => {
  const { hover, socket, shown, connection } = opened(context);
  connection.state = "away";
  hover.ask(question(1));
  socket.answers();
  assert.deepEqual([marks(shown), connection.finds], [["question 1"], 1]);
});

test("a server that is silent for 30 seconds is left, and the question asked on another socket", async (context) => {
  const { hover, sockets, socket, pass } = opened(context);
  hover.ask(question(1));
  await pass(29_999);
  assert.equal(socket.readyState, FakeSocket.OPEN);
  await pass(1);
  assert.equal(socket.readyState, 2);
  socket.goes();
  await settled();
  await pass(250);
  sockets[1].opens();
  assert.deepEqual(places(sockets[1]), [1]);
});

test("a server that answers is not left, however long the mouse rests", async (context) => {
  const { hover, socket, pass } = opened(context);
  hover.ask(question(1));
  await pass(29_000);
  socket.answers();
  await pass(600_000);
  assert.equal(socket.readyState, FakeSocket.OPEN);
});

test("after a new token the old socket is closed, and a new one comes", async (context) => {
  const { hover, sockets, socket, pass } = opened(context);
  hover.close();
  assert.equal(socket.readyState, 2);
  hover.ask(question(1));
  assert.deepEqual([sockets.length, socket.sent], [1, []], "nothing is sent on a socket that closes");
  socket.goes();
  await settled();
  await pass(250);
  sockets[1].opens();
  assert.deepEqual(places(sockets[1]), [1]);
});

test("a socket that closes twice is replaced once", async (context) => {
  const { hover, sockets, socket, pass } = opened(context);
  socket.goes();
  socket.goes();
  await settled();
  await pass(60_000);
  assert.equal(sockets.length, 2);
  sockets[1].opens();
  socket.goes();
  hover.ask(question(1));
  assert.deepEqual([sockets.length, places(sockets[1])], [2, [1]]);
});
