// Menus, choices and tooltips.

import { button, h } from "./dom.js";

const LONGEST_TIP = 2000; // characters; Save JSON has all of them

/** A button with a panel below it, which closes by Escape and by a click elsewhere. */
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
  const buttons = options.map(([value, text, title]) => button({ "aria-pressed": String(value === chosen), title, "data-value": value }, () => press(value), text));
  const element = h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
  const show = (value) => buttons.forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.value === String(value))));
  const press = (value) => {
    show(value);
    choose(value);
  };
  return { element, show };
}

/** Show the whole text of a cell that is cut off, beside the cell under the pointer. */
export function mountTooltip(root) {
  const tip = h("div", { class: "tooltip", role: "tooltip", hidden: true });
  root.append(tip);
  const hide = () => (tip.hidden = true);
  root.addEventListener("pointerover", (event) => {
    const cell = event.target.closest?.("[role=gridcell], [role=rowheader], .place");
    const isCut = (element) => element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0;
    if (cell && [cell, ...cell.querySelectorAll(".text")].some(isCut)) showTip(tip, cell);
    else hide();
  });
  root.addEventListener("pointerleave", hide);
  root.addEventListener("scroll", hide, { capture: true, passive: true });
  root.addEventListener("keydown", hide, true);
}

function showTip(tip, cell) {
  const text = (cell.querySelector(".text") ?? cell).textContent;
  tip.textContent = text.length > LONGEST_TIP ? `${text.slice(0, LONGEST_TIP)}…` : text;
  tip.hidden = false;
  const at = cell.getBoundingClientRect();
  const left = Math.max(4, Math.min(at.left, innerWidth - tip.offsetWidth - 8));
  const below = at.bottom + tip.offsetHeight + 4 < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? at.bottom + 2 : Math.max(4, at.top - tip.offsetHeight - 2)}px`;
}
