/** What a file with several images in it is meant to be: the user is asked. */
import { element, icon } from "../ui/dom.js";

/**
 * @param {string} name of the file @param {number|null} pages
 * @param {[string, string][]} choices  value and what the button says
 * @returns {Promise<string|null>} null: nothing was chosen
 */
export function askHow(name, pages, choices) {
  const dialog = element("dialog", { class: "dialog small", "aria-labelledby": "question-title" });
  const heading = element("h2", { id: "question-title" }, pages ? `${name} has ${pages.toLocaleString("en")} pages` : `${name} has several frames`);
  const close = element("button", { class: "button bare", "aria-label": "Close" }, icon("close"));
  const buttons = choices.map(([value, label]) => element("button", { type: "button", class: "button", "data-choice": value }, label));
  const form = element("form", { method: "dialog" }, heading, close);
  dialog.append(form, element("div", { class: "choices" }, ...buttons));
  document.body.append(dialog);
  return new Promise((resolve) => {
    for (const button of buttons) button.onclick = () => dialog.close(button.dataset.choice);
    dialog.onclose = () => {
      dialog.remove();
      resolve(dialog.returnValue || null);
    };
    dialog.showModal();
  });
}
