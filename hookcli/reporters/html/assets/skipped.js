// The list of what was not measured, grouped by reason.

import { h, longList } from "./dom.js";
import { count } from "./format.js";
import { select } from "./selection.js";

const NAMES = 30; // of one reason that are shown at first

/** Mount the list. */
export function mountSkipped(container, { model }) {
  const reasons = Map.groupBy(model.skipped, (item) => item.reason);
  const groups = [...reasons].map(([reason, items]) => {
    return h("section", { class: "reason" }, h("h2", {}, reason, h("span", { class: "count" }, count(items.length))), longList({ class: "names" }, items, NAMES, (item) => nameItem(item, model)));
  });
  container.append(h("div", { class: "skipped" }, h("p", { class: "lead" }, "An absent row is never a zero: these were not measured."), groups));
  return {};
}

function nameItem(item, model) {
  const text = `${item.fqn || "(model)"} ${item.path}`.trim();
  const owner = item.kind === "not_judged" ? null : model.owner(item.fqn);
  if (!owner) return h("li", {}, h("span", { class: "place", title: text }, text));
  return h("li", {}, h("button", { type: "button", class: "place", title: text, on: { click: () => select(owner.fqn, "skipped") } }, text));
}
