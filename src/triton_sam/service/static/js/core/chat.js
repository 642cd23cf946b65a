/**
 * Questions about an image, and their answers.
 *
 * @typedef {object} Turn
 * @property {string} question
 * @property {string} answer  as far as it has come
 * @property {import("./grounding.js").Entity[]} entities
 * @property {"asked"|"done"|"stopped"|"failed"} state
 * @property {string|null} finish  "length" where the answer is cut
 * @property {number} tokens  0 while nobody has told
 * @property {number} since  performance.now() of the question
 * @property {number} took  milliseconds, in the end
 * @property {unknown} problem  why it failed
 */

/** Stands for the image in what {@link messagesOf} gives. */
export const IMAGE = "<image>";

/** @returns {Turn} */
export const newTurn = (question, since) => ({
  question, answer: "", entities: [], state: "asked", finish: null, tokens: 0, since, took: 0, problem: null,
});

/**
 * @param {Turn[]} earlier about the same image
 * @param {string} question
 * @param {boolean} chats whether the model reads what was said before
 * @returns {object[]} messages of /v1/chat/completions, the image in the first of the user's
 */
export function messagesOf(earlier, question, chats) {
  // What failed was never said; what was stopped was read as far as it came.
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
