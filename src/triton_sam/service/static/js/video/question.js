/** What a file with several images in it is meant to be: the user is asked. */
import { element, icon } from "../ui/dom.js";
import { placeLabel, placesText } from "./places.js";

/**
 * @param {string} name of the file @param {number|null} pages  null: not known
 * @param {[string, string][]} choices  value and what the button says
 * @returns {Promise<string|null>} null: nothing was chosen
 */
export function askHow(name, pages, choices) {
  const title = pages ? `${name} has ${pages.toLocaleString("en")} pages` : `${name}: what is it?`;
  const buttons = choices.map(([value, label], index) =>
    element("button", { type: "button", class: "button", "data-choice": value, autofocus: index === 0 }, label));
  return asked(title, element("div", { class: "choices" }, ...buttons), (close) => {
    for (const button of buttons) button.onclick = () => close(button.dataset.choice);
  });
}

/**
 * @param {string} name of the file @param {import("./places.js").Place[]} places
 * @returns {Promise<string|null>} where its other dimensions are held, as the API takes it
 */
export function askPlaces(name, places) {
  const inputs = places.map(({ most }, index) =>
    element("input", { type: "number", min: "0", max: String(most), value: "0", class: "place", autofocus: index === 0 }));
  const fields = places.map((place, index) => element("label", { class: "row place-row" }, element("span", {}, placeLabel(place)), inputs[index]));
  const go = element("button", { type: "button", class: "button strong" }, "Open");
  return asked(`${name}: which part?`, element("div", { class: "choices" }, ...fields, go), (close) => {
    go.onclick = () => close(placesText(places, inputs.map((input) => input.valueAsNumber)));
  });
}

function asked(title, body, listen) {
  const dialog = element("dialog", { class: "dialog small", "aria-labelledby": "question-title" });
  const close = element("button", { class: "button bare", "aria-label": "Close" }, icon("close"));
  dialog.append(element("form", { method: "dialog" }, element("h2", { id: "question-title" }, title), close), body);
  document.body.append(dialog);
  return new Promise((resolve) => {
    listen((value) => dialog.close(value));
    dialog.onclose = () => {
      dialog.remove();
      resolve(dialog.returnValue || null);
    };
    dialog.showModal();
  });
}
