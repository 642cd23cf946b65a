/** One question and its answer in the chat log. */
import { marked } from "../core/grounding.js";
import { sentence } from "../net/problems.js";
import { element } from "./dom.js";

/**
 * @param {import("../core/chat.js").Turn} turn
 * @param {object} actions
 * @param {() => void} actions.retry
 * @param {(byHand: boolean) => void} actions.showAll makes objects of all that the answer is about
 * @param {(index: number, byHand: boolean) => void} actions.take a found box
 * @param {(indices: number[]) => void} actions.light found boxes
 * @returns {{node: HTMLElement, show: (found: import("../core/grounding.js").Found[], isNewest: boolean, showing: "none"|"offered"|"busy") => void, mark: (lit: number[]) => void}}
 *   show: updates the turn, with those of its boxes that are on the image; mark: which of them are highlighted;
 *   showing: whether what it is about can be shown, or is looked for
 */
export function turnRow(turn, actions) {
  const answer = element("p", { class: "answer" });
  const list = element("ul", { class: "chips" });
  const remark = element("p", { class: "fine" });
  const onShow = ({ detail }) => actions.showAll(detail > 0);
  const showAll = element("button", { type: "button", class: "button", title: "Its masks become objects", hidden: true, onclick: onShow }, "Show me");
  const node = element("div", { class: "turn" }, element("p", { class: "question" }, turn.question), answer, list, showAll, remark);
  let parts = [];

  /** Highlights its boxes while the mouse or the focus is on it. */
  const lights = (part, indices) => {
    parts.push({ part, indices });
    part.onpointerenter = part.onfocus = () => actions.light(indices);
    part.onpointerleave = part.onblur = () => actions.light([]);
    return part;
  };
  const phraseOf = ({ text, entity }, found) => {
    const indices = found.flatMap((box, index) => (box.entity === entity ? [index] : []));
    return entity === null || !indices.length ? text : lights(element("mark", {}, text), indices);
  };
  const buttonOf = ({ phrase, entity }, index, found) => {
    const same = found.filter((box) => box.entity === entity);
    const text = same.length > 1 ? `${phrase} ${same.indexOf(found[index]) + 1}` : phrase;
    const onclick = ({ detail }) => actions.take(index, detail > 0);
    return lights(element("button", { type: "button", class: "chip", title: "Segment it", onclick }, text), [index]);
  };

  const show = (found, isNewest, showing) => {
    parts = [];
    showAll.hidden = showing === "none";
    showAll.textContent = showing === "busy" ? "Stop" : "Show me";
    const pieces = found.length ? marked(turn.answer, turn.entities) : [{ text: turn.answer, entity: null }];
    answer.replaceChildren(...pieces.map((piece) => phraseOf(piece, found)));
    list.replaceChildren(...found.map((box, index) => element("li", {}, buttonOf(box, index, found))));
    list.hidden = !found.length;
    remark.replaceChildren(remarkOf(turn));
    remark.classList.toggle("problem", turn.state === "failed");
    if (turn.state === "failed" && isNewest) remark.append(" ", retryButton(turn.problem?.retryAfter ?? 0, actions.retry));
  };
  const mark = (lit) => {
    for (const { part, indices } of parts) part.classList.toggle("lit", indices.some((index) => lit.includes(index)));
  };
  return { node, show, mark };
}

function remarkOf({ state, problem, finish, tokens, took }) {
  if (state === "asked") return "";
  if (state === "failed") return problem?.detail || sentence(problem);
  const parts = [];
  if (state === "stopped") parts.push("stopped");
  if (finish === "length") parts.push("cut at the longest answer");
  if (tokens) parts.push(`${tokens} tokens`);
  if (state === "done") parts.push(`${(took / 1000).toFixed(1)} s`);
  return parts.join(" · ");
}

/** @param {number} seconds until a retry is allowed */
function retryButton(seconds, retry) {
  const button = element("button", { type: "button", class: "link" });
  const until = performance.now() + 1000 * seconds;
  const tick = () => {
    const left = Math.ceil((until - performance.now()) / 1000);
    button.textContent = left > 0 ? `Retry in ${left} s` : "Retry";
    button.setAttribute("aria-disabled", String(left > 0)); // it keeps the focus
    if (left > 0) setTimeout(tick, 250);
  };
  tick();
  button.onclick = () => button.getAttribute("aria-disabled") === "false" && retry();
  return button;
}
