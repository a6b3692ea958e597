// Shows the whole text of a cell that is cut off, beside the pointer or at the selected row.

import { h } from "./dom.js";

const LONGEST = 2000; // characters; Save JSON has all of them

/** Watch an element's cells. */
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
  tip.textContent = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
  tip.hidden = false;
  const at = cell.getBoundingClientRect();
  const left = Math.max(4, Math.min(at.left, innerWidth - tip.offsetWidth - 8));
  const below = at.bottom + tip.offsetHeight + 4 < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? at.bottom + 2 : Math.max(4, at.top - tip.offsetHeight - 2)}px`;
}
