/** The controls for words and examples in the panel, and the progress over the image. */
import { $, element, icon } from "../ui/dom.js";
import { takesWords } from "./models.js";
import { LONGEST } from "./prompt.js";

/**
 * @param {import("../app.js").App} app
 * @param {import("./session.js").WordsSession} session
 * @param {import("./examples.js").Examples} examples
 * @param {() => void} closePanel on a phone, where it would cover the image
 */
export function startPanel(app, session, examples, closePanel) {
  const text = element("input", {
    type: "text", id: "words-text", maxLength: LONGEST, autocomplete: "off", placeholder: "Find by words: coin, spoon",
    "aria-label": "Words for what to find, several with commas", "aria-describedby": "words-why",
  });
  const find = element("button", { class: "button", id: "words-find" }, "Find");
  const form = element("form", { class: "words-line" }, text, find);
  const why = element("p", { class: "fine", id: "words-why" });
  const row = exampleRow(examples);
  const section = element("section", { class: "words", id: "words", "aria-label": "Find by words and examples" }, form, row.node, why);
  document.querySelector(".find").before(section);
  form.onsubmit = (event) => {
    event.preventDefault();
    if (session.isBusy) return;
    session.find(text.value);
    if (session.isBusy) closePanel(); // what is refused can be typed again
  };
  text.onkeydown = ({ key }) => {
    if (key !== "Escape") return;
    if (session.isBusy) session.cancel();
    else $("surface").focus();
  };
  showProgress(session);
  const show = () => {
    const able = app.models.filter(takesWords);
    const { model } = app.images;
    const isAble = able.some(({ id }) => id === model);
    section.hidden = !able.length;
    text.disabled = !isAble || !app.picture;
    find.disabled = text.disabled;
    find.setAttribute("aria-disabled", String(session.isBusy)); // it keeps the focus
    row.enable(!text.disabled);
    why.replaceChildren(...(isAble || !able.length ? [] : [`${model} knows no words. `, chooser(able)]));
  };
  session.addEventListener("state", show);
  for (const event of ["picture", "models"]) app.addEventListener(event, show);
  app.images.addEventListener("state", show);
  show();
}

/** @returns {string} the id of the default of the models that take words, or of the first */
const choiceOf = (able) => (able.find((model) => model.default) ?? able[0]).id;

function choose(id) {
  $("model").value = id;
  $("model").dispatchEvent(new Event("change"));
}

function chooser(able) {
  const id = choiceOf(able);
  return element("button", { type: "button", class: "link", onclick: () => choose(id) }, `Use ${id}`);
}

/**
 * Says so if the model in use takes no words; there is another one that does.
 * @param {import("../app.js").App} app @returns {boolean} whether it takes them
 */
export function isAbleOrTold(app) {
  const able = app.models.filter(takesWords);
  const { model } = app.images;
  if (able.some(({ id }) => id === model)) return true;
  const id = choiceOf(able);
  app.notice("words", `${model} takes no words and no examples.`, { label: `Use ${id}`, run: () => choose(id) });
  return false;
}

function exampleRow(examples) {
  const adds = [[1, "plus", "Like this", "The chosen object or box is an example (L)"], [0, "minus", "Not this", "The chosen object or box shows what is not meant (Shift+L)"]].map(
    ([label, sign, name, title]) => element("button", { type: "button", class: "button", title, onclick: () => examples.add(label) }, icon(sign), name));
  const chips = element("ul", { class: "chips", "aria-label": "Examples" });
  const show = () => {
    const focused = [...chips.querySelectorAll("button")].indexOf(document.activeElement);
    chips.replaceChildren(...examples.all.map(({ label }, index) => element("li", {}, chip(examples, label, index))));
    chips.hidden = !examples.all.length;
    if (focused >= 0) (chips.querySelectorAll("button")[Math.min(focused, examples.all.length - 1)] ?? adds[0]).focus();
  };
  examples.addEventListener("examples", show);
  show();
  const enable = (isAble) => {
    for (const add of adds) add.disabled = !isAble;
  };
  return { node: element("div", { class: "words-examples" }, ...adds, chips), enable };
}

function chip(examples, label, index) {
  const what = `${label ? "like this" : "not this"}, example ${index + 1}`;
  const onclick = () => examples.remove(index);
  return element("button", { type: "button", class: "chip", "aria-label": `Remove: ${what}`, title: `Remove: ${what}`, onclick },
    icon(label ? "plus" : "minus"), String(index + 1), icon("close"));
}

function showProgress(session) {
  const text = element("span", {});
  const cancel = element("button", { type: "button", class: "button", onclick: () => session.cancel() }, "Cancel");
  const bar = element("progress", { "aria-label": "Looking" });
  const place = element("div", { class: "progress find-progress", id: "words-progress", hidden: true }, text, bar, cancel);
  $("notices").before(place);
  session.addEventListener("state", () => {
    const hadFocus = place.contains(document.activeElement);
    place.hidden = !session.isBusy;
    if (hadFocus && !session.isBusy) $("surface").focus();
    if (session.isBusy) text.textContent = `Looking for ${session.words.join(", ") || "what is like the examples"}`;
  });
}
