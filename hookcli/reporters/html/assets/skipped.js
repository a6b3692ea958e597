// The list of what was not measured, grouped by reason.

import { h } from "./dom.js";
import { count } from "./format.js";
import { select } from "./selection.js";

const NAMES = 30; // of one reason that are shown at first

/** Mount the list. */
export function mountSkipped(container, { model }) {
  const reasons = Map.groupBy(model.skipped, (item) => item.reason);
  const groups = [...reasons].map(([reason, items]) => {
    return h("section", { class: "reason" }, h("h2", {}, reason, h("span", { class: "count" }, count(items.length))), names(items, model));
  });
  container.append(h("div", { class: "skipped" }, h("p", { class: "lead" }, "An absent row is never a zero: these were not measured."), groups));
  return {};
}

function names(items, model) {
  const list = h("ul", { class: "names" }, items.slice(0, NAMES).map((item) => nameItem(item, model)));
  if (items.length <= NAMES) return list;
  const more = h("button", { type: "button", class: "button" }, `Show all ${count(items.length)}`);
  more.addEventListener("click", () => {
    list.append(...items.slice(NAMES).map((item) => nameItem(item, model)));
    more.remove();
  });
  return [list, more];
}

function nameItem(item, model) {
  const text = `${item.fqn || "(model)"} ${item.path}`.trim();
  const owner = item.kind === "not_judged" ? null : model.owner(item.fqn);
  if (!owner) return h("li", {}, h("span", { class: "place", title: text }, text));
  return h("li", {}, h("button", { type: "button", class: "place", title: text, on: { click: () => select(owner.fqn, "skipped") } }, text));
}
