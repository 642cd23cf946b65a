/** The button that deletes the selected point, for fingers and screen readers. */
import { $ } from "./dom.js";

/** @param {import("../interaction.js").Interaction} interaction */
export function startPointButton({ handles }) {
  const button = $("delete-point");
  handles.addEventListener("selection", () => {
    const hadFocus = document.activeElement === button;
    button.hidden = handles.selected === null;
    if (button.hidden && hadFocus) $("surface").focus();
  });
  button.onclick = () => handles.removeSelected();
}
