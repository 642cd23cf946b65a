import assert from "node:assert/strict";
import test from "node:test";

import { Problem, problemOf, sentence } from "../../src/triton_sam/service/static/js/net/problems.js";

const PASSING = ["unreachable", "unavailable", "queue_full", "deadline_exceeded", "request_timeout"];
const OWN_SENTENCE = [...PASSING, "not_authorised", "forgetful", "internal_error", "unsupported"];
const LASTING = [...OWN_SENTENCE.slice(PASSING.length), "image_expired", "too_large", "invalid_input", "refused"];

test("what may succeed in a moment passes, and the rest does not", () => {
  for (const code of PASSING) assert.equal(new Problem(code).passes, true, code);
  for (const code of LASTING) assert.equal(new Problem(code).passes, false, code);
});

test("each problem that the page knows has a sentence of its own, whatever the service says", () => {
  const sentences = OWN_SENTENCE.map((code) => sentence(new Problem(code, "the service's own words")));
  assert.equal(new Set(sentences).size, OWN_SENTENCE.length);
  for (const text of sentences) {
    assert.match(text, /^[A-Z].*\.$/);
    assert.doesNotMatch(text, /own words/);
  }
});

test("an image that is too large is told with the server's numbers, and what to do about it", () => {
  const examples = [
    [
      "the image has 9000 x 9000 = 81,000,000 pixels and 50,000,000 are allowed: send a smaller one or tiles of it",
      "it has 9000 x 9000 = 81,000,000 pixels and 50,000,000 are allowed. Open a smaller one or tiles of it.",
    ],
    [
      "the image has 9 bytes and 8 are allowed: send a smaller one",
      "it has 9 bytes and 8 are allowed. Open a smaller one.",
    ],
    [
      "the image has far more pixels than allowed: send a smaller one",
      "it has far more pixels than allowed. Open a smaller one.",
    ],
  ];
  for (const [detail, told] of examples) {
    assert.equal(sentence(new Problem("too_large", detail)), `This image is too large for the server: ${told}`);
  }
});

test("other refusals are told in the service's words, as a sentence", () => {
  const examples = [
    ["the image cannot be read: it is damaged", "The image cannot be read: it is damaged."],
    ["is it a picture?", "Is it a picture?"],
    ["Stop!", "Stop!"],
    ["done.", "Done."],
    ["", "The server refused that."],
  ];
  for (const [detail, told] of examples) assert.equal(sentence(new Problem("invalid_input", detail)), told);
});

test("what is no problem of the server is one of the page", () => {
  for (const error of [new TypeError("x is not a function"), undefined, null, "text"]) {
    assert.equal(sentence(error), "Something in this page went wrong. Reload it; your work is kept.");
  }
});

test("a problem is an error with the service's code and words", () => {
  const problem = new Problem("queue_full", "64 requests wait: try again");
  assert.ok(problem instanceof Error);
  assert.equal(problem.message, "64 requests wait: try again");
  assert.equal(new Problem("unreachable").message, "unreachable");
});

test("the service's own refusal is read from its answer, whatever the status", () => {
  const message = "the image is no longer cached: send it again";
  const problem = problemOf(404, JSON.stringify({ error: { code: "image_expired", message } }));
  assert.ok(problem instanceof Problem);
  assert.equal(problem.code, "image_expired");
  assert.equal(problem.detail, message);
});

test("an answer that is not the service's is judged by its status", () => {
  const examples = [
    [502, "<html>Bad Gateway</html>", "unavailable"],
    [503, "", "unavailable"],
    [0, "", "unavailable"],
    [500, '{"detail": "other words"}', "unavailable"],
    [504, "null", "unavailable"],
    [413, "<html>Request Entity Too Large</html>", "too_large"],
    [404, "not found", "refused"],
    [400, "[]", "refused"],
  ];
  for (const [status, text, code] of examples) assert.equal(problemOf(status, text).code, code, `${status} ${text}`);
});

test("a proxy's JSON is not taken for the service's", () => {
  for (const text of ['{"error": "Bad Gateway"}', '{"error": {}}', '{"error": {"message": "upstream"}}']) {
    assert.equal(problemOf(502, text).code, "unavailable", text);
  }
});

test("an image that a proxy or the limit of a request refuses is told without numbers, and what to do about it", () => {
  const told = "This image is too large for the server, or for a proxy before it. Open a smaller one.";
  assert.equal(sentence(problemOf(413, "<html></html>")), told);
  assert.equal(sentence(new Problem("too_large")), told);
  const message = "the request has more than 33,554,432 bytes: send less";
  assert.equal(sentence(problemOf(413, JSON.stringify({ error: { code: "too_large", message } }))), told);
});

test("a server that forgets at once is told as such, and other codes that it sends are told in its words", () => {
  assert.match(sentence(new Problem("forgetful")), /^The server forgets the image as soon as it is encoded: /);
  assert.equal(sentence(new Problem("image_expired", "send it again")), "Send it again.");
});
