/** The chat tab of the panel, shown if the server has vision-language models. */
import { foundIn } from "../core/grounding.js";
import { Showing } from "../ask/showing.js";
import { $, element } from "./dom.js";
import { prefer, preference } from "./preferences.js";
import { startTabs } from "./tabs.js";
import { turnRow } from "./chat_turns.js";

const EXAMPLES = ["What is in this image?", "Describe this image in detail."];
const PATIENCE = 1500;
const NEAR_THE_END = 40;

/**
 * @param {import("../app.js").App} app
 * @param {import("../chat_session.js").ChatSession} chatting
 * @param {import("../interaction.js").Interaction} interaction
 * @param {() => void} closePanel if it covers the image
 */
export function startAsk(app, chatting, interaction, closePanel) {
  const ask = (question) => chatting.ask(question);
  const examples = EXAMPLES.map((text) => element("button", { type: "button", class: "chip", onclick: () => ask(text) }, text));
  $("ask-examples").append(...examples.map((example) => element("li", {}, example)));
  const send = () => {
    if (ask($("ask-text").value)) $("ask-text").value = "";
  };
  $("ask-text").onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  $("ask-send").onclick = ({ detail }) => {
    if (!chatting.isBusy) send();
    else if (detail < 2) chatting.stop(); // the second click of a double click is ignored
  };
  $("ask-clear").onclick = () => {
    chatting.clear();
    $("ask-text").focus();
  };
  $("ask-boxes").onchange = () => {
    interaction.found.isShown = $("ask-boxes").checked;
    interaction.showFound(interaction.found.boxes);
  };

  const showLog = showTurns(app, chatting, interaction, closePanel);
  const show = () => {
    showLog();
    for (const example of examples) {
      example.disabled = !app.picture;
      example.setAttribute("aria-disabled", String(chatting.isBusy)); // it keeps the focus
    }
    $("ask-text").disabled = !app.picture;
    $("ask-send").disabled = !app.picture;
    $("ask-send").textContent = chatting.isBusy ? "Stop" : "Ask";
    $("ask-clear").hidden = !chatting.turns.length;
    $("ask-boxes-row").hidden = !interaction.found.boxes.length;
  };
  chatting.addEventListener("turns", show);
  show();
  showWaiting(chatting);
  followModels(app, chatting);
}

/** @returns {() => void} updates the log and the boxes on the image */
function showTurns(app, chatting, interaction, closePanel) {
  const log = $("ask-log");
  let rows = new Map();
  const actions = {
    retry: () => {
      chatting.retry();
      $("ask-text").focus();
    },
    light: (indices) => interaction.light(indices),
    take: (index, byHand) => {
      interaction.takeFound(index);
      if (byHand) leave();
    },
    showAll: async (byHand) => {
      const isShown = await showing.toggle(chatting.turns.at(-1), interaction.found.boxes);
      // The model may have been asked for it, and the next question may be half typed.
      if (byHand && isShown && document.activeElement !== $("ask-text")) leave();
    },
  };
  const leave = () => {
    closePanel();
    $("surface").focus();
  };
  interaction.addEventListener("found", () => {
    for (const { mark } of rows.values()) mark(interaction.found.lit);
  });
  const show = () => {
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_THE_END;
    const newest = chatting.turns.at(-1);
    const found = newest?.state === "done" ? foundIn(newest.entities, app.picture) : [];
    interaction.showFound(found);
    log.setAttribute("aria-busy", String(chatting.isBusy)); // screen readers read the complete answer, not word by word
    const before = rows;
    const isAnother = chatting.turns.length !== before.size || !before.has(newest);
    rows = new Map(chatting.turns.map((turn) => [turn, before.get(turn) ?? turnRow(turn, actions)]));
    for (const [turn, { node }] of before) if (!rows.has(turn)) node.remove();
    for (const [turn, { node, show }] of rows) {
      if (turn === newest) show(found, true, showing.of(turn, found));
      else if (isAnother) show([], false, "none"); // only the newest has boxes and a retry button
      if (!node.isConnected) log.append(node);
    }
    if (isAtEnd || isAnother) log.scrollTop = log.scrollHeight;
  };
  const showing = new Showing(app, show);
  return show;
}

/** While a model loads, the first word may take a minute. */
function showWaiting(chatting) {
  const tick = () => {
    const turn = chatting.isBusy ? chatting.turns.at(-1) : null;
    const waited = turn && !turn.answer ? performance.now() - turn.since : 0;
    $("ask-status").textContent = waited > PATIENCE ? `waiting for ${chatting.model.id}, ${Math.floor(waited / 1000)} s` : "";
  };
  let timer;
  chatting.addEventListener("turns", () => {
    tick();
    clearInterval(timer);
    if (chatting.isBusy && !chatting.turns.at(-1).answer) timer = setInterval(tick, 250);
  });
}

function followModels(app, chatting) {
  const showTab = startTabs();
  const select = $("ask-model");
  let models = [];
  const choose = (model) => {
    chatting.model = model;
    select.value = model.id;
    select.title = model.title;
  };
  const load = async () => {
    models = await app.connection.persist(() => app.service.chatModels());
    const wanted = chatting.model?.id ?? preference("ask-model", "");
    select.replaceChildren(...models.map(({ id, title }) => element("option", { value: id, title }, id)));
    select.disabled = models.length < 2;
    if (models.length) choose(models.find(({ id }) => id === wanted) ?? models[0]);
    else chatting.model = null;
    showTab(models.length > 0);
  };
  select.onchange = () => {
    choose(models.find(({ id }) => id === select.value));
    prefer("ask-model", select.value);
  };
  app.connection.addEventListener("back", () => load().catch(() => {}));
  load().catch(() => {}); // the page works without the chat
}
