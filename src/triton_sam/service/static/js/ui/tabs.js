/** The tabs of the panel, shown only if there is a second one. */
import { $ } from "./dom.js";

/** @returns {(isThere: boolean) => void} shows or hides the second tab */
export function startTabs() {
  const tabs = [$("tab-objects"), $("tab-ask")];
  const choose = (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      $(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
  };
  for (const [index, tab] of tabs.entries()) {
    tab.onclick = () => choose(tab);
    tab.onkeydown = ({ key }) => {
      if (key !== "ArrowRight" && key !== "ArrowLeft") return;
      const other = tabs[1 - index];
      choose(other);
      other.focus();
    };
  }
  return (isThere) => {
    $("panel-tabs").hidden = !isThere;
    $("panel-title").hidden = isThere;
    for (const [name, value] of [["role", "tabpanel"], ["aria-labelledby", "tab-objects"]]) {
      if (isThere) $("objects-side").setAttribute(name, value);
      else $("objects-side").removeAttribute(name);
    }
    if (!isThere) choose(tabs[0]);
  };
}
