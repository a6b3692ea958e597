// A button with a panel below it, which closes by Escape and by a click elsewhere.

import { h } from "./dom.js";

/**
 * A menu.
 * @param {Node[]} children of the panel
 */
export function menu(title, children) {
  const panel = h("div", { class: "menu-panel", role: "group", "aria-label": title }, children);
  const element = h("details", { class: "menu" }, h("summary", { class: "button" }, title), panel);
  const close = (event) => {
    if (event.type === "keydown" ? event.key === "Escape" : !element.contains(event.target)) element.open = false;
  };
  element.addEventListener("toggle", () => {
    for (const type of ["pointerdown", "keydown"]) {
      if (element.open) document.addEventListener(type, close);
      else document.removeEventListener(type, close);
    }
  });
  return element;
}

/** A row of buttons of which one is pressed. */
export function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, title, hint]) => {
    const pressed = String(value === chosen);
    return h("button", { type: "button", class: "button", "aria-pressed": pressed, title: hint, "data-value": value, on: { click: () => press(value) } }, title);
  });
  const element = h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  const show = (value) => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === String(value))));
  const press = (value) => {
    show(value);
    choose(value);
  };
  return { element, show };
}
