import assert from "node:assert/strict";
import test from "node:test";

import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { oneOf, randomNumbers, settled } from "./helpers.js";
import { marks, mask, opened, places, prepared, question, result } from "./hover_helpers.js";

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
