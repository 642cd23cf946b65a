/** How masks are made from clicks: small holes and islands are cleaned away, and each click may be an object of its own. */
import { setCleaning } from "../core/document.js";
import { $ } from "./dom.js";

/** Positions of the slider, in original pixels. */
const SIZES = [0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
const DEFAULT_SIZE = 64;

/**
 * @param {import("../app.js").App} app
 * @param {import("../interaction.js").Interaction} interaction
 */
export function startMaskSettings(app, interaction) {
  startCleaning(app);
  const box = $("one-click");
  box.onchange = () => interaction.setOneClick(box.checked);
  let saved = interaction.isOneClick;
  interaction.addEventListener("tool", () => {
    box.checked = interaction.isOneClick;
    if (saved !== interaction.isOneClick) app.saveSetting("one-click", (saved = interaction.isOneClick));
  });
  app.readSetting("one-click").then((isOneClick) => isOneClick && interaction.setOneClick(true));
}

function startCleaning(app) {
  const slider = $("clean");
  slider.max = String(SIZES.length - 1);
  const show = (size) => {
    const text = size ? `${size.toLocaleString("en")} px` : "off";
    slider.value = String(SIZES.indexOf(size));
    slider.setAttribute("aria-valuetext", text);
    $("clean-size").textContent = text;
    setCleaning(size);
    app.hovering.clear();
    app.dispatchEvent(new Event("document"));
  };
  slider.oninput = () => show(SIZES[Number(slider.value)]);
  slider.onchange = () => app.saveSetting("clean", SIZES[Number(slider.value)]);
  const read = async () => {
    const size = await app.readSetting("clean");
    if (SIZES.includes(size)) show(size);
    else app.saveSetting("clean", DEFAULT_SIZE); // project files tell it
  };
  show(DEFAULT_SIZE);
  read();
  app.addEventListener("settings", read);
}
