/**
 * The turns of a chat about an image.
 *
 * @typedef {object} Turn
 * @property {string} question
 * @property {import("../chat_session.js").ChatModel} model  that was asked
 * @property {string} answer  so far
 * @property {import("./grounding.js").Entity[]} entities
 * @property {"asked"|"done"|"stopped"|"failed"} state
 * @property {string|null} finish  "length" if the answer reached its limit
 * @property {number} tokens  0 if unknown
 * @property {number} since  performance.now() of the question
 * @property {number} took  milliseconds, when finished
 * @property {unknown} problem  why it failed
 */

/** Placeholder for the image in the result of {@link messagesOf}. */
export const IMAGE = "<image>";

/** @returns {Turn} */
export const newTurn = (question, model, since) => ({
  question, model, answer: "", entities: [], state: "asked", finish: null, tokens: 0, since, took: 0, problem: null,
});

/**
 * @param {Turn[]} earlier about the same image
 * @param {string} question
 * @param {boolean} chats whether the model supports conversations
 * @returns {object[]} messages of /v1/chat/completions, with the image in the first user message
 */
export function messagesOf(earlier, question, chats) {
  // Failed answers are left out; stopped ones are kept as far as they came.
  const told = chats ? earlier.filter(({ state, answer }) => answer.trim() && ["done", "stopped"].includes(state)) : [];
  const messages = told.flatMap((turn) => [
    { role: "user", content: turn.question },
    { role: "assistant", content: turn.answer },
  ]);
  messages.push({ role: "user", content: question });
  messages[0] = {
    role: "user",
    content: [{ type: "image_url", image_url: { url: IMAGE } }, { type: "text", text: messages[0].content }],
  };
  return messages;
}
