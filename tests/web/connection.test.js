import assert from "node:assert/strict";
import test from "node:test";

import { Connection } from "../../src/triton_sam/service/static/js/net/connection.js";
import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { settled } from "./helpers.js";

/** A connection whose time the test has in hand. */
function prepared(context) {
  globalThis.window = new EventTarget();
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const service = { token: "", looks: 0, isUp: true, isReady: async () => ((service.looks += 1), service.isUp) };
  const connection = new Connection(service);
  const states = [];
  connection.addEventListener("state", () => states.push(connection.state));
  const pass = async (milliseconds) => {
    context.mock.timers.tick(milliseconds);
    await settled();
  };
  return { service, connection, states, pass };
}

/** A request that fails with these problems, one after the other, and then succeeds. */
function failing(...codes) {
  const request = async () => {
    request.calls += 1;
    if (codes.length) throw new Problem(codes.shift());
    return "done";
  };
  request.calls = 0;
  return request;
}

test("a request that succeeds is made once, and the connection is ready", async (context) => {
  const { connection, states } = prepared(context);
  assert.equal(connection.state, "connecting");
  const request = failing();
  assert.equal(await connection.persist(request), "done");
  assert.equal(await connection.persist(request), "done");
  assert.equal(request.calls, 2);
  assert.deepEqual(states, ["ready"], "told once");
});

test("what passes is tried again when the server is ready again", async (context) => {
  for (const code of ["unreachable", "unavailable", "queue_full", "deadline_exceeded", "request_timeout"]) {
    await context.test(code, async (inner) => {
      const { connection, service, states, pass } = prepared(inner);
      const request = failing(code);
      const result = connection.persist(request);
      await settled();
      assert.equal(connection.state, "away");
      assert.equal(connection.problem.code, code);
      await pass(499);
      assert.deepEqual([request.calls, service.looks], [1, 0]);
      await pass(1);
      assert.equal(await result, "done");
      assert.deepEqual([request.calls, service.looks], [2, 1]);
      assert.deepEqual(states, ["away", "ready"]);
      assert.equal(connection.problem, null);
    });
  }
});

test("what does not pass is thrown at once", async (context) => {
  const { connection, service, states, pass } = prepared(context);
  for (const error of [new TypeError("a fault"), new Problem("invalid_input"), new Problem("image_expired")]) {
    let calls = 0;
    const request = async () => {
      calls += 1;
      throw error;
    };
    await assert.rejects(connection.persist(request), (thrown) => thrown === error);
    await pass(10_000);
    assert.equal(calls, 1);
    const isRefusal = error instanceof Problem;
    assert.deepEqual(states, isRefusal ? ["ready"] : [], "who refuses is there, and a fault of the page tells nothing");
  }
  assert.equal(service.looks, 0);
});

test("a server that refuses for good after it was away is there again", async (context) => {
  const { connection, states, pass } = prepared(context);
  connection.lost(new Problem("queue_full"));
  await assert.rejects(connection.persist(failing("invalid_input")), { code: "invalid_input" });
  assert.deepEqual([connection.state, connection.problem], ["ready", null]);
  await pass(500);
  assert.deepEqual(states, ["away", "ready"], "the look that was due tells nothing new");
});

test("a good health alone makes it ready: nobody need ask for a mask", async (context) => {
  const { connection, service, states, pass } = prepared(context);
  service.isUp = false;
  let isBack = false;
  connection.lost(new Problem("unreachable")).then(() => (isBack = true));
  await pass(500);
  assert.deepEqual([connection.state, service.looks, isBack], ["away", 1, false]);
  service.isUp = true;
  await pass(750);
  assert.deepEqual([connection.state, connection.problem, service.looks, isBack], ["ready", null, 2, true]);
  assert.deepEqual(states, ["away", "ready"]);
});

test("who has heard of the server says so: it is ready, and told once", async (context) => {
  const { connection, states } = prepared(context);
  connection.found();
  connection.found();
  assert.deepEqual([connection.state, connection.problem, states], ["ready", null, ["ready"]]);
});

test("a server that was found while away is ready at once, and who waits goes on after the look", async (context) => {
  const { connection, service, states, pass } = prepared(context);
  const request = failing("queue_full");
  const result = connection.persist(request);
  await settled();
  connection.found();
  assert.deepEqual([connection.state, connection.problem], ["ready", null]);
  await pass(499);
  assert.deepEqual([request.calls, service.looks], [1, 0], "a full server is not asked before the pause is over");
  await pass(1);
  assert.equal(await result, "done");
  assert.deepEqual(states, ["away", "ready"]);
});

test("a server that is found does not shorten the next pause: only a request that succeeds does", async (context) => {
  const { connection, pass } = prepared(context);
  const request = failing("queue_full", "queue_full");
  const result = connection.persist(request);
  await settled();
  await pass(500);
  assert.equal(request.calls, 2);
  connection.found();
  await pass(999);
  assert.equal(request.calls, 2);
  await pass(1);
  assert.equal(await result, "done");
});

test("a server that wants a token is not ready because it answers something without it", async (context) => {
  const { connection, states } = prepared(context);
  const request = failing("not_authorised");
  const result = connection.persist(request);
  await settled();
  connection.found();
  assert.equal(await connection.persist(failing()), "done");
  await assert.rejects(connection.persist(failing("invalid_input")), { code: "invalid_input" });
  assert.deepEqual([connection.state, connection.problem.code], ["locked", "not_authorised"]);
  assert.equal(request.calls, 1);
  connection.unlock("secret");
  assert.equal(await result, "done");
  assert.deepEqual(states, ["locked", "connecting", "ready"]);
});

test("while the server is away it is asked ever more seldom, but every 5 seconds", async (context) => {
  const { connection, service, pass } = prepared(context);
  service.isUp = false;
  const request = failing("unreachable");
  const result = connection.persist(request);
  await settled();
  const pauses = [500, 750, 1125, 1687.5, 2531.25, 3796.875, 5000, 5000, 5000];
  for (const [index, pause] of pauses.entries()) {
    await pass(Math.ceil(pause) - 1);
    assert.equal(service.looks, index, `too early for look ${index + 1}`);
    await pass(1);
    assert.equal(service.looks, index + 1);
  }
  service.isUp = true;
  assert.equal(request.calls, 1);
  await pass(5000);
  assert.equal(await result, "done");
});

test("a server that is healthy but full is asked ever more seldom too, until a request succeeds", async (context) => {
  const { connection, pass } = prepared(context);
  for (const round of ["at first", "after a success"]) {
    const request = failing(...new Array(6).fill("queue_full"));
    const result = connection.persist(request);
    await settled();
    for (const [index, pause] of [500, 1000, 2000, 4000, 4000, 4000].entries()) {
      await pass(pause - 1);
      assert.equal(request.calls, index + 1, `${round}, too early`);
      await pass(1);
      assert.equal(request.calls, index + 2, round);
    }
    assert.equal(await result, "done");
  }
});

test("many requests that fail wait together: the server is asked once", async (context) => {
  const { connection, service, states, pass } = prepared(context);
  const requests = Array.from({ length: 20 }, () => failing("unreachable"));
  const results = Promise.all(requests.map((request) => connection.persist(request)));
  await settled();
  await pass(500);
  await results;
  assert.equal(service.looks, 1);
  assert.ok(requests.every(({ calls }) => calls === 2));
  assert.deepEqual(states, ["away", "ready"]);
});

test("when the browser says that the network is back, nobody waits for the pause", async (context) => {
  const { connection, service, pass } = prepared(context);
  service.isUp = false;
  const request = failing("unreachable");
  const result = connection.persist(request);
  await settled();
  await pass(4000);
  const before = service.looks;
  service.isUp = true;
  window.dispatchEvent(new Event("online"));
  assert.equal(await result, "done");
  assert.equal(service.looks, before + 1);
  window.dispatchEvent(new Event("online")); // nobody waits any more
  await pass(60_000);
  assert.equal(service.looks, before + 1);
});

test("without a token it is locked, asks nothing, and goes on when a person gives one", async (context) => {
  const { connection, service, states, pass } = prepared(context);
  const requests = [failing("not_authorised"), failing("not_authorised")];
  const results = Promise.all(requests.map((request) => connection.persist(request)));
  await settled();
  assert.equal(connection.state, "locked");
  assert.equal(connection.problem.code, "not_authorised");
  await pass(3_600_000);
  window.dispatchEvent(new Event("online"));
  await settled();
  assert.deepEqual([requests[0].calls, requests[1].calls, service.looks], [1, 1, 0]);
  connection.unlock("secret");
  assert.equal(service.token, "secret");
  assert.deepEqual(await results, ["done", "done"]);
  assert.deepEqual(states, ["locked", "connecting", "ready"]);
});

test("a wrong token locks it again, and is told again", async (context) => {
  const { connection, states } = prepared(context);
  const request = failing("not_authorised", "not_authorised");
  const result = connection.persist(request);
  await settled();
  connection.unlock("wrong");
  await settled();
  assert.equal(connection.state, "locked");
  assert.equal(request.calls, 2);
  connection.unlock("right");
  assert.equal(await result, "done");
  assert.deepEqual(states, ["locked", "connecting", "locked", "connecting", "ready"]);
});

test("a server that comes back and wants a token is locked then", async (context) => {
  const { connection, states, pass } = prepared(context);
  const request = failing("unavailable", "not_authorised");
  const result = connection.persist(request);
  await settled();
  await pass(500);
  assert.equal(connection.state, "locked");
  connection.unlock("secret");
  assert.equal(await result, "done");
  assert.deepEqual(states, ["away", "ready", "locked", "connecting", "ready"]);
});

test("who gave up meanwhile is not tried again", async (context) => {
  const { connection, pass } = prepared(context);
  const request = failing("unreachable");
  const abort = new AbortController();
  const result = assert.rejects(connection.persist(request, abort.signal), { name: "AbortError" });
  await settled();
  abort.abort();
  await pass(500);
  await result;
  assert.equal(request.calls, 1);
});

test("another reason for being away is told, the same one is not", async (context) => {
  const { connection, pass } = prepared(context);
  const told = [];
  connection.addEventListener("state", () => told.push([connection.state, connection.problem?.code]));
  for (const code of ["unreachable", "unreachable", "queue_full", "queue_full"]) connection.lost(new Problem(code));
  assert.deepEqual(told, [["away", "unreachable"], ["away", "queue_full"]]);
  await pass(500);
  assert.deepEqual(told.slice(2), [["ready", undefined]]);
});

test("each time that a request fails after a good health is told", async (context) => {
  const { connection, states, pass } = prepared(context);
  const result = connection.persist(failing("unreachable", "unreachable", "queue_full"));
  await settled();
  for (const pause of [500, 1000, 2000]) await pass(pause);
  assert.equal(await result, "done");
  assert.deepEqual(states, ["away", "ready", "away", "ready", "away", "ready"]);
});

test("who waits for a token stays locked when another request finds no server", async (context) => {
  const { connection, service, states, pass } = prepared(context);
  const settledWaits = [];
  connection.lost(new Problem("not_authorised")).then(() => settledWaits.push("not_authorised"));
  connection.lost(new Problem("unreachable")).then(() => settledWaits.push("unreachable"));
  await pass(60_000);
  assert.deepEqual([connection.state, connection.problem.code], ["locked", "not_authorised"]);
  assert.deepEqual([service.looks, settledWaits], [0, []]);
  connection.unlock("secret");
  await settled();
  assert.deepEqual(settledWaits, ["not_authorised", "unreachable"], "both try again with the token");
  assert.deepEqual(states, ["locked", "connecting"]);
});
