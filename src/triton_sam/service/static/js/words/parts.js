/** The parts for words and examples, loaded once a model is served that understands them. */
import { Examples } from "./examples.js";
import { isAbleOrTold, startPanel } from "./panel.js";
import { WordsSession } from "./session.js";

/**
 * @param {import("../app.js").App} app
 * @param {import("../interaction.js").Interaction} interaction
 * @param {() => void} closePanel
 */
export function wordsParts(app, interaction, closePanel) {
  const examples = new Examples(app, interaction);
  startPanel(app, new WordsSession(app, examples), examples, closePanel);
  return { example: (label) => isAbleOrTold(app) && examples.add(label) };
}
