/** Finding by words and examples: its parts are loaded once a model is served that understands them. */
import { loadStyles } from "../ui/styles.js";
import { takesWords } from "./models.js";

const NO_MODEL =
  "This server has no model that finds objects by words or examples: triton-sam setup sam3 says how to get one, " +
  "and triton-sam serve sam3:shapes has a toy for drawn shapes.";

/**
 * @param {import("../app.js").App} app
 * @param {import("../interaction.js").Interaction} interaction
 * @param {() => void} closePanel on a phone, where it would cover the image
 * @returns {{example: (label: 0|1) => Promise<void>}} example: the active object is one, or shows what is not meant
 */
export function startWords(app, interaction, closePanel) {
  let loading = null;
  const load = () => {
    loading ??= Promise.all([import("./parts.js"), loadStyles(new URL("../../css/words.css", import.meta.url))]).then(
      ([{ wordsParts }]) => wordsParts(app, interaction, closePanel),
      () => (loading = null), // tried again when the models are told again
    );
    return loading;
  };
  const isServed = () => app.models.some(takesWords);
  app.addEventListener("models", () => isServed() && load());
  const example = async (label) => {
    const parts = isServed() ? await load() : null;
    if (parts) parts.example(label);
    else app.notice("words", NO_MODEL);
  };
  return { example };
}
