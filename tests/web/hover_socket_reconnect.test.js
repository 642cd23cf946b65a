import assert from "node:assert/strict";
import test from "node:test";

import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { deferred, settled } from "./helpers.js";
import { FakeSocket, marks, opened, places, prepared, question } from "./hover_helpers.js";

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
