/** The colour theme: light, dark or the system's. */
import { $ } from "./dom.js";
import { prefer, preference } from "./preferences.js";

const NAMES = { system: "as the system", light: "light", dark: "dark" };

export function startTheme() {
  const button = $("theme");
  const show = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.title = `Colours: ${NAMES[theme]}`;
    button.setAttribute("aria-label", button.title);
  };
  let theme = preference("theme", "system");
  if (!(theme in NAMES)) theme = "system";
  show(theme);
  button.onclick = () => {
    const order = Object.keys(NAMES);
    theme = order[(order.indexOf(theme) + 1) % order.length];
    prefer("theme", theme);
    show(theme);
  };
}
