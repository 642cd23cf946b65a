/** Small helpers for the page's elements. */

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} id @returns {any} the element, which index.html has */
export const $ = (id) => document.getElementById(id);

/**
 * @param {string} tag
 * @param {Record<string, any>} properties  of the element; "class", "data-..." and "aria-..." are attributes
 * @param {...(Node|string)} children
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class" || name.includes("-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/** @param {string} name of a symbol in index.html */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** @returns {HTMLButtonElement} a button that shows an icon only */
export const iconButton = (name, label, onclick) =>
  element("button", { type: "button", class: "button bare", "aria-label": label, title: label, onclick }, icon(name));

/** A button that is disabled loses the focus to nowhere: the image has it then. */
export function setDisabled(button, isDisabled) {
  const hadFocus = document.activeElement === button;
  button.disabled = isDisabled;
  if (isDisabled && hadFocus) $("surface").focus();
}

/**
 * A group of buttons of which one is chosen: arrows move, as in any radio group.
 * @param {HTMLElement} group with role=radiogroup, its buttons have role=radio
 * @param {string} name of the data attribute that tells them apart
 * @param {(value: string) => void} onChoose
 */
export function radioGroup(group, name, onChoose) {
  const buttons = () => [...group.querySelectorAll("[role=radio]")];
  group.addEventListener("click", ({ target, detail }) => {
    const button = target.closest("[role=radio]");
    if (!button) return;
    onChoose(button.dataset[name]);
    if (detail > 0) $("surface").focus(); // by mouse or finger: the image's keys shall work now
  });
  group.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const all = buttons().filter((button) => button.offsetParent !== null); // some have no room on a phone
    const next = all[(all.indexOf(document.activeElement) + by + all.length) % all.length];
    next.focus();
    onChoose(next.dataset[name]);
  });
  return (value) => {
    for (const button of buttons()) {
      const isChosen = button.dataset[name] === String(value);
      button.setAttribute("aria-checked", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    }
  };
}
