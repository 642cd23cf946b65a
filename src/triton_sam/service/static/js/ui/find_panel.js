/** "Find everything": its button, the progress over the image, and the sliders and the order for what was found. */
import { NO_FILTER, accept, countFound, dropFound, withFilter } from "../core/found.js";
import { STEPS, extents, positionOfScore, positionOfSize, scoreAt, sizeAt } from "../core/found_scales.js";
import { $, setDisabled } from "./dom.js";
import { prefer, preference } from "./preferences.js";

const ORDERS = ["drawn", "size", "score"];
const number = (value) => value.toLocaleString("en");

/**
 * @param {import("../app.js").App} app
 * @param {import("../find_session.js").FindSession} session
 * @param {import("./objects.js").ObjectList} list
 * @param {() => void} closePanel on a phone, where it would cover the image
 */
export function startFind(app, session, list, closePanel) {
  startButtons(app, session, closePanel);
  startSliders(app);
  startChoices(app);
  const order = $("object-order");
  order.onchange = () => {
    prefer("object-order", order.value);
    list.setOrder(order.value);
  };
  const known = preference("object-order", ORDERS[0]);
  order.value = ORDERS.includes(known) ? known : ORDERS[0];
  list.setOrder(order.value);
}

function startButtons(app, session, closePanel) {
  const [start, points] = [$("find-start"), $("find-points")];
  const known = preference("find-points", points.value);
  if ([...points.options].some(({ value }) => value === known)) points.value = known;
  points.onchange = () => prefer("find-points", points.value);
  start.onclick = () => {
    closePanel();
    session.start({ points_per_side: Number(points.value) });
  };
  $("find-cancel").onclick = () => session.cancel();
  const show = () => {
    const { phase } = session.state;
    const hadFocus = [start, $("find-cancel")].includes(document.activeElement);
    start.disabled = session.isBusy || !app.picture;
    $("find-progress").hidden = phase === "idle";
    if (hadFocus) (session.isBusy ? $("find-cancel") : $("surface")).focus(); // what had it is disabled or gone
    if (phase !== "idle") showProgress(session.state);
  };
  session.addEventListener("state", show);
  app.addEventListener("picture", show);
}

function showProgress({ phase, done, of, count }) {
  const bar = $("find-bar");
  if (of) bar.value = done / of;
  else bar.removeAttribute("value");
  const isWaiting = phase === "waiting";
  $("find-text").textContent = isWaiting ? "Waiting for the server" : `Finding: ${number(count)} ${count === 1 ? "object" : "objects"}`;
}

function startChoices(app) {
  const choose = (change, told) => () => {
    const { shown, total } = countFound(app.document);
    app.change(change);
    app.announce(told(shown, total));
    if ($("found").hidden) $("surface").focus(); // what had it is gone
  };
  $("accept-found").onclick = choose((document) => accept(document), (shown) => `${number(shown)} accepted.`);
  $("drop-found").onclick = choose(dropFound, (_, total) => `${number(total)} dropped.`);
}

function startSliders(app) {
  const [score, size] = [$("least-score"), $("least-size")];
  score.max = size.max = String(STEPS);
  let range = null;
  let frame = 0;
  const apply = () => {
    frame = 0;
    if (!range) return;
    const filter = { score: scoreAt(range.score, Number(score.value)), size: sizeAt(range.size, Number(size.value)) };
    app.amend((document) => withFilter(document, filter)); // no undo step: it is how one looks at what was found
  };
  // Once a frame: a slider reports more often than hundreds of masks can be drawn.
  score.oninput = size.oninput = () => (frame ||= requestAnimationFrame(apply));
  app.addEventListener("document", () => {
    range = extents(app.document);
    $("found").hidden = !range;
    if (range) showFilter(app.document, range, frame !== 0);
  });
}

/** @param {boolean} isMoving the sliders are ahead of the document */
function showFilter(shown, range, isMoving) {
  const { score, size } = shown.filter ?? NO_FILTER;
  if (!isMoving) {
    $("least-score").value = String(positionOfScore(range.score, score));
    $("least-size").value = String(positionOfSize(range.size, size));
  }
  say("least-score", score ? score.toFixed(3) : "all");
  say("least-size", size ? `${number(size)} px` : "all");
  const { total, shown: count } = countFound(shown);
  setDisabled($("accept-found"), count === 0);
  $("found-text").textContent =
    count < total ? `${number(count)} of ${number(total)} found are shown. Hidden ones are not exported.` : `${number(total)} found, all shown.`;
}

function say(id, text) {
  $(`${id}-text`).textContent = text;
  $(id).setAttribute("aria-valuetext", text);
}
