import assert from "node:assert/strict";
import test from "node:test";

import { ChatSession } from "../../src/triton_sam/service/static/js/chat_session.js";
import { messagesOf, newTurn } from "../../src/triton_sam/service/static/js/core/chat.js";
import { chatBody, dataUrl, pieces } from "../../src/triton_sam/service/static/js/net/chat.js";
import { Problem } from "../../src/triton_sam/service/static/js/net/problems.js";
import { deferred, settled } from "./helpers.js";

const turn = (question, answer, state = "done") => ({ ...newTurn(question, null, 0), answer, state });
const picture = (url, text) => [{ type: "image_url", image_url: { url } }, { type: "text", text }];

// -- what is sent ------------------------------------------------------------------------------------------------

test("the image is in the first message of the user, whatever was said before", () => {
  const earlier = [turn("What?", "A cup."), turn("Colour?", "Re", "stopped")];
  assert.deepEqual(messagesOf(earlier, "And now?", true), [
    { role: "user", content: picture("<image>", "What?") },
    { role: "assistant", content: "A cup." },
    { role: "user", content: "Colour?" },
    { role: "assistant", content: "Re" },
    { role: "user", content: "And now?" },
  ]);
});

test("a model that does not chat gets the question alone", () => {
  assert.deepEqual(messagesOf([turn("What?", "A cup.")], "And now?", false), [{ role: "user", content: picture("<image>", "And now?") }]);
});

test("what failed, or was stopped before its first word, was never said", () => {
  const earlier = [turn("one", "half", "failed"), turn("two", "", "stopped"), turn("three", " \n", "done"), turn("four", "half", "asked")];
  assert.deepEqual(messagesOf(earlier, "five", true), [{ role: "user", content: picture("<image>", "five") }]);
});

test("a file's bytes are in the body as they are, at every length around its parts", async () => {
  const part = 3 * 2 ** 18;
  for (const size of [0, 1, 2, 3, 1000, part - 1, part, part + 1, 2 * part + 2]) {
    const bytes = Uint8Array.from({ length: size }, (_, index) => (index * 7919) % 256);
    const file = new Blob([bytes], { type: "image/jpeg" });
    const body = JSON.parse(await (await chatBody("m", messagesOf([], 'say "<image>"', false), file)).text());
    assert.deepEqual([body.model, body.stream, body.stream_options], ["m", true, { include_usage: true }]);
    const [{ image_url: { url } }, { text }] = body.messages[0].content;
    assert.equal(text, 'say "<image>"', "what a person types is not taken for the image");
    assert.equal(url, `data:image/jpeg;base64,${Buffer.from(bytes).toString("base64")}`, `${size} bytes`);
  }
});

test("a file becomes text once, and is called an image also where the browser does not know it", async () => {
  const file = new Blob(["abc"]);
  assert.equal(await (await dataUrl(file)).text(), "data:image/png;base64,YWJj");
  assert.equal(await dataUrl(file), await dataUrl(file));
});

// -- what comes back ---------------------------------------------------------------------------------------------

const events = (...all) => new TextEncoder().encode(all.map((one) => `data: ${typeof one === "string" ? one : JSON.stringify(one)}\n\n`).join(""));
const delta = (content, finish = null) => ({ choices: [{ delta: { content }, finish_reason: finish }] });
const END = "[DONE]";

/** A service whose answers a test writes: each call of chat gets the next one. */
function fakeService(...answers) {
  const asked = [];
  const chat = async (body, signal) => {
    asked.push({ body: JSON.parse(await body.text()), signal });
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    if (answer instanceof ReadableStream) return answer;
    return new Response(answer).body;
  };
  return { chat, asked };
}

async function all(answer) {
  const found = [];
  for await (const piece of pieces(fakeService(answer), new Blob(["{}"]), new AbortController().signal)) found.push(piece);
  return found;
}

test("pieces: text, entities, how it ended and what it cost", async () => {
  const entities = [{ phrase: "a cup", start: 0, end: 5, boxes: [[1, 2, 3, 4]] }];
  const last = { choices: [{ delta: { entities }, finish_reason: "stop" }] };
  const found = await all(events(delta("a "), delta("cup"), last, { choices: [], usage: { completion_tokens: 9 } }, END, delta("never")));
  assert.deepEqual(found.map(({ text }) => text), ["a ", "cup", "", ""]);
  assert.deepEqual(found[2], { text: "", entities, finish: "stop", tokens: 0 });
  assert.equal(found[3].tokens, 9);
});

test("an error among the events, an answer that is cut off, and one that nobody can read", async () => {
  await assert.rejects(all(events(delta("a"), { error: { message: "no memory: ask less" } })), { code: "refused", detail: "no memory: ask less" });
  await assert.rejects(all(events({ error: { code: "queue_full", message: "busy" } })), { code: "queue_full" });
  await assert.rejects(all(events(delta("a"))), { code: "cut_off" });
  await assert.rejects(all(events("{")), { code: "cut_off" });
  assert.equal((await all(events(delta("a", "stop")))).length, 1, "one that has ended needs no more");
});

// -- the conversation --------------------------------------------------------------------------------------------

function prepared(...answers) {
  const app = new EventTarget();
  app.picture = { file: new Blob(["abc"], { type: "image/png" }), width: 10, height: 10 };
  app.service = fakeService(...answers);
  app.connection = { told: [], found() { this.told.push("found"); }, async lost({ code }) { this.told.push(code); } };
  const chatting = new ChatSession(app);
  chatting.model = { id: "m", title: "M", chats: true, grounds: true };
  const idle = async () => {
    while (chatting.isBusy) await settled();
  };
  return { app, chatting, idle, asked: app.service.asked };
}

test("a question gets its answer, and the next one tells of both", async () => {
  const { chatting, idle, asked } = prepared(events(delta("A cup."), delta("", "length"), END), events(delta("Red.", "stop"), END));
  assert.equal(chatting.ask("  What?\n"), true);
  assert.equal(chatting.ask("Another?"), false, "one at a time");
  await idle();
  assert.deepEqual(chatting.turns.map(({ question, answer, state, finish }) => [question, answer, state, finish]), [["What?", "A cup.", "done", "length"]]);
  chatting.ask("Colour?");
  await idle();
  assert.deepEqual(asked[1].body.messages.map(({ role }) => role), ["user", "assistant", "user"]);
  assert.equal(chatting.ask(" \n "), false, "nothing is no question");
});

test("stop keeps what has come, and tells the server", async () => {
  const wire = new TransformStream();
  const writer = wire.writable.getWriter();
  const { chatting, idle, asked } = prepared(wire.readable);
  chatting.ask("What?");
  writer.write(events(delta("A c"))).catch(() => {});
  while (!chatting.turns[0].answer) await settled();
  chatting.stop();
  writer.abort(new DOMException("stopped", "AbortError")).catch(() => {}); // as fetch does with its signal
  await idle();
  assert.deepEqual([chatting.turns[0].answer, chatting.turns[0].state], ["A c", "stopped"]);
  assert.equal(asked[0].signal.aborted, true);
});

test("another image ends it, and what comes late is nobody's", async () => {
  const later = deferred();
  const { app, chatting, asked } = prepared();
  app.service.chat = async (body, signal) => {
    asked.push({ signal });
    return later.promise;
  };
  chatting.ask("What?");
  while (!asked.length) await settled();
  app.dispatchEvent(new Event("picture"));
  assert.deepEqual([chatting.turns, chatting.isBusy, asked[0].signal.aborted], [[], false, true]);
  later.resolve(new Response(events(delta("late", "stop"), END)).body);
  await settled();
  assert.deepEqual([chatting.turns, chatting.isBusy], [[], false]);
});

test("what fails can be asked again in its place, and not what has an answer", async () => {
  const { app, chatting, idle, asked } = prepared(new Problem("unavailable", "m is loading"), events(delta("Yes.", "stop"), END));
  chatting.ask("What?");
  await idle();
  assert.deepEqual([chatting.turns[0].state, chatting.turns[0].problem.detail], ["failed", "m is loading"]);
  chatting.retry();
  await idle();
  assert.deepEqual(chatting.turns.map(({ answer, state }) => [answer, state]), [["Yes.", "done"]]);
  chatting.retry();
  assert.equal(asked.length, 2);
  assert.deepEqual(app.connection.told, ["found"], "a model that loads is no server that is away");
});

test("a token that is missing is waited for, and a server that is gone is told of", async () => {
  const answers = [new Problem("not_authorised"), events(delta("Yes.", "stop"), END), new Problem("unreachable", "gone")];
  const { app, chatting, idle } = prepared(...answers);
  chatting.ask("What?");
  await idle();
  assert.equal(chatting.turns[0].answer, "Yes.");
  chatting.ask("What?");
  await idle();
  assert.equal(chatting.turns[1].state, "failed");
  assert.deepEqual(app.connection.told, ["not_authorised", "found", "unreachable"]);
});
