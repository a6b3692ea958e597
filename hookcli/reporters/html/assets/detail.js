// The pane beside the views: everything about the selected module.

import { h } from "./dom.js";
import { cell, counted } from "./format.js";
import { onSelect, selected } from "./selection.js";
import { advice } from "./verdict.js";

/** Mount the pane; it follows the selection. */
export function mountDetail(container, { model }) {
  const draw = ({ fqn }) => container.replaceChildren(...(fqn === null ? [hint()] : of(model, fqn)));
  onSelect(draw);
  draw(selected());
  return {};
}

function hint() {
  return h("p", { class: "nothing" }, "Select a row to see its details.");
}

function of(model, fqn) {
  const module = model.byFqn.get(fqn);
  const head = h("h2", {}, fqn || "(model)");
  if (!module) return [head];
  const calls = module.shapes.map((row) => h("li", {}, `${cell(row, "input_shape")} → ${cell(row, "output_shape")}`));
  const findings = module.findings.map((finding) => h("div", { class: "detail-finding" }, h("span", { class: `badge ${finding.severity}` }, finding.check), finding.message, ...advice(finding)));
  const missing = module.skipped.map((item) => h("p", { class: "dim" }, `${item.fqn} ${item.path}: ${item.reason}`));
  return [head, h("p", { class: "dim" }, module.type, ` · ${counted(module.children.length, "part")}`), h("ul", {}, calls), ...findings, ...missing];
}
