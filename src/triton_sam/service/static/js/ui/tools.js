/** The toolbar, the sliders, and the panel, which is a sheet on small screens. */
import { canRedo, canUndo } from "../core/history.js";
import { $, radioGroup, setDisabled } from "./dom.js";
import { prefer, preference } from "./preferences.js";

/**
 * @param {import("../app.js").App} app
 * @param {import("../draw/stage.js").Stage} stage
 * @param {import("../interaction.js").Interaction} interaction
 */
export function startTools(app, stage, interaction) {
  const markTool = radioGroup($("tool-group"), "tool", (tool) => interaction.setTool(tool));
  const markSign = radioGroup($("sign-group"), "sign", (sign) => interaction.setSign(Number(sign)));
  interaction.addEventListener("tool", () => {
    markTool(interaction.tool);
    markSign(interaction.sign);
    $("surface").dataset.tool = interaction.tool;
    $("brush-size-box").hidden = interaction.tool !== "brush" && interaction.tool !== "eraser";
    $("brush-size").value = String(Math.round(2 * interaction.brushRadius));
    prefer("brush", interaction.brushRadius);
  });
  $("brush-size").oninput = () => interaction.setBrush(Number($("brush-size").value) / 2);
  interaction.setBrush(Number(preference("brush", "12")) || 12);

  $("undo").onclick = () => app.undo();
  $("redo").onclick = () => app.redo();
  $("fit").onclick = () => stage.fit();
  $("new-object").onclick = $("next-object").onclick = () => {
    interaction.finish();
    showPanel(false);
  };
  app.addEventListener("document", () => {
    setDisabled($("new-object"), app.document.activeId === null);
    $("next-object").hidden = app.document.activeId === null;
    // They keep the focus: one Enter too many must not click the image.
    $("undo").setAttribute("aria-disabled", String(!canUndo(app.history)));
    $("redo").setAttribute("aria-disabled", String(!canRedo(app.history)));
  });
  startLook(interaction);
  // After a mouse click or tap the image's shortcuts work, and Space does not press the button again.
  for (const area of [document.querySelector(".tools"), $("objects")]) {
    area.addEventListener("click", ({ target, detail }) => {
      const button = target.closest("button");
      if (detail > 0 && button && button !== $("show-panel")) $("surface").focus();
    });
  }
  $("show-panel").onclick = () => showPanel(!isPanelOpen());
  $("hide-panel").onclick = () => showPanel(false);
  return { enable: () => ($("fit").disabled = false), closePanel: () => isPanelOpen() && showPanel(false) };
}

function startLook(interaction) {
  // Display only: the model gets the original image.
  $("brightness").oninput = () => ($("picture").style.filter = `brightness(${$("brightness").value}%)`);
  const opacity = $("opacity");
  opacity.value = preference("opacity", "50");
  let style = preference("look", "both");
  const show = () => interaction.setLook({ fill: Number(opacity.value) / 100, style });
  const mark = radioGroup($("look-group"), "look", (chosen) => {
    style = chosen;
    mark(style);
    prefer("look", style);
    show();
  });
  opacity.oninput = () => {
    prefer("opacity", opacity.value);
    show();
  };
  mark(style);
  show();
}

const isPanelOpen = () => $("panel").classList.contains("open");

function showPanel(isOpen) {
  const hadFocus = $("panel").contains(document.activeElement);
  $("panel").classList.toggle("open", isOpen);
  $("show-panel").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) $("hide-panel").focus();
  else if (hadFocus && $("show-panel").offsetParent) $("show-panel").focus();
}
