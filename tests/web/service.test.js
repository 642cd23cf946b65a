import assert from "node:assert/strict";
import test from "node:test";

import { Service } from "../../src/triton_sam/service/static/js/net/service.js";

const BASE = "http://here:8080/sam/index.html";

/** A browser's parts that the service needs; what it has asked is in `asked`. */
function browser(context, storage) {
  const asked = [];
  const sockets = [];
  const parts = {
    fetch: async (address, options) => (asked.push({ address, headers: options.headers }), new Response("{}")),
    WebSocket: class {
      constructor(address, protocols) {
        sockets.push({ address: String(address), protocols });
      }
    },
    sessionStorage: storage,
  };
  for (const [name, value] of Object.entries(parts)) {
    const before = Object.getOwnPropertyDescriptor(globalThis, name);
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
    context.after(() => (before ? Object.defineProperty(globalThis, name, before) : delete globalThis[name]));
  }
  return { asked, sockets };
}

function storage() {
  const kept = new Map();
  return { getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => kept.set(name, value) };
}

test("requests and socket of a tab have the same text, by which a proxy brings them to one server", async (context) => {
  const { asked, sockets } = browser(context, storage());
  const service = new Service(BASE);
  service.token = "t";
  await service.limits();
  await service.segment({});
  await service.chat(new Blob(["{}"]), new AbortController().signal);
  service.hoverSocket();
  assert.match(service.place, /^[0-9-]{8,}$/);
  assert.deepEqual(asked.map(({ headers }) => headers["X-Image-Key"]), Array(3).fill(service.place));
  assert.deepEqual(asked.map(({ headers }) => headers.Authorization), Array(3).fill("Bearer t"));
  assert.equal(sockets[0].address, `ws://here:8080/sam/v1/hover?image=${service.place}`);
});

test("a reload keeps it, another tab has another one", (context) => {
  browser(context, storage());
  const first = new Service(BASE).place;
  assert.equal(new Service(BASE).place, first);
  browser(context, storage());
  assert.notEqual(new Service(BASE).place, first);
});

test("without storage there is one all the same", (context) => {
  const refuses = () => {
    throw new DOMException("no storage", "SecurityError");
  };
  browser(context, { getItem: refuses, setItem: refuses });
  assert.match(new Service(BASE).place, /^[0-9-]{8,}$/);
});
