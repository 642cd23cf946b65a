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

/** Disables a button; the image gets its focus, which would be lost otherwise. */
export function setDisabled(button, isDisabled) {
  const hadFocus = document.activeElement === button;
  button.disabled = isDisabled;
  if (isDisabled && hadFocus) $("surface").focus();
}

/**
 * A radio group of buttons, with arrow keys.
 * @param {HTMLElement} group with role=radiogroup, its buttons have role=radio
 * @param {string} name of the data attribute with each button's value
 * @param {(value: string) => void} onChoose
 */
export function radioGroup(group, name, onChoose) {
  const buttons = () => [...group.querySelectorAll("[role=radio]")];
  group.addEventListener("click", ({ target, detail }) => {
    const button = target.closest("[role=radio]");
    if (!button) return;
    onChoose(button.dataset[name]);
    if (detail > 0) $("surface").focus(); // after a mouse click or tap the image's shortcuts work
  });
  group.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const all = buttons().filter((button) => button.offsetParent !== null); // some are hidden on a phone
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
