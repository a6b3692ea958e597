// The pane beside a chosen row: all that the reports say about one module.
import { h } from "./dom.js";
import { histogram } from "./histogram.js";
import { callsTable, findingsList, parametersTable, skippedList, statisticsTable } from "./detail_parts.js";
import { count } from "./format.js";
import { onSelect, selected } from "./selection.js";

const MOST_DISTRIBUTIONS = 12; // of parameters, drawn at once

/** Mount the pane; it follows the selection. */
export function mountDetail(container, context) {
  const root = h("div", { class: "detail" });
  const spoken = h("p", { class: "chart-summary", role: "status" });
  container.append(root, spoken);
  const show = ({ fqn, row }) => {
    root.replaceChildren(...detailParts(context, fqn, row));
    spoken.textContent = fqn === null ? "" : `${fqn || "the model"} selected`;
  };
  onSelect(show);
  show(selected());
}

/** The parts of the pane, from top to bottom. */
function detailParts({ payload, model }, fqn, row) {
  if (fqn === null) return [h("p", { class: "detail-none" }, "Select a row, a box or a point to see its details.")];
  const module = model.byFqn.get(fqn) ?? model.owner(fqn);
  if (!module) return [detailName(fqn, "")];
  return [
    detailName(fqn, module.fqn === fqn ? module.type : `in ${module.fqn || "(model)"}, ${module.type}`),
    ...findingsList(module.findings, payload.explain ?? {}),
    ...detailSection("Inputs and outputs", callsTable(module)),
    ...detailSection("Parameters", parametersTable(module.parameters)),
    ...tensorSection(module, row),
    ...parameterDistributions(module.parameters),
    ...detailSection("Not measured", skippedList(module.skipped, module.fqn)),
  ];
}

function detailSection(title, content) {
  return content ? [h("h3", { class: "detail-title" }, title), content] : [];
}

function detailName(fqn, type) {
  const copy = h("button", { type: "button", class: "detail-copy", on: { click: () => copyName(fqn, copy) } }, "Copy");
  copy.setAttribute("aria-label", "Copy the name");
  const name = h("h2", { class: "detail-name" }, fqn || "(model)");
  return h("header", { class: "detail-head" }, name, fqn && copy, h("span", { class: "detail-type" }, type));
}

async function copyName(fqn, button) {
  try {
    await navigator.clipboard.writeText(fqn);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousSibling); // some browsers allow no page from a file to copy
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

/** Statistics and distributions of the outputs and their gradients: of one call and tensor, with a choice if there are more. */
function tensorSection(module, row) {
  const places = placesOfOutput(module);
  if (!places.size) return [];
  const body = h("div", {});
  const keys = [...places.keys()];
  const show = (key) => body.replaceChildren(...tensorParts(places.get(key)));
  const wanted = row ? outputPlace(row) : keys[0];
  const first = places.has(wanted) ? wanted : keys[0];
  show(first);
  const options = keys.map((key) => h("option", { value: key, selected: key === first }, key));
  const choice = h("select", { "aria-label": "Output", on: { change: (event) => show(event.target.value) } }, ...options);
  const title = h("h3", { class: "detail-title" }, "Output", keys.length > 1 && choice);
  return [title, body];
}

/** Rows of the outputs and gradients, by the call, path and rank that tells them apart. */
function placesOfOutput(module) {
  const places = new Map();
  const lists = { activations: "output", outputGrads: "gradient", inputs: "input", inputGrads: "input's gradient" };
  for (const [list, title] of Object.entries(lists)) {
    for (const row of module[list]) {
      const key = outputPlace(row);
      if (!places.has(key)) places.set(key, new Map());
      if (!places.get(key).has(title)) places.get(key).set(title, row);
    }
  }
  return places;
}

function outputPlace(row) {
  const said = [`call ${(row.call ?? 0) + 1}`, row.path, row.pass && `pass ${row.pass + 1}`, row.rank !== undefined && `rank ${row.rank}`];
  return said.filter(Boolean).join(" ");
}

function tensorParts(rows) {
  const columns = [...rows].filter(([, row]) => "l2" in row);
  const drawn = columns.filter(([, row]) => row.hist).map(([title, row]) => histogram(row, title));
  const notes = [...rows.values()].filter((row) => row.note).map((row) => h("p", { class: "detail-note" }, row.note));
  return [columns.length ? statisticsTable(columns) : null, ...notes, ...drawn].filter(Boolean);
}

function parameterDistributions(parameters) {
  const rows = parameters.flatMap(({ name, values, gradients }) => [
    ...values.map((row) => [row, name]),
    ...gradients.slice(0, 1).map((row) => [row, `gradient of ${name}`]),
  ]);
  const drawn = rows.filter(([row]) => row.hist).slice(0, MOST_DISTRIBUTIONS);
  if (!drawn.length) return [];
  const more = rows.filter(([row]) => row.hist).length - drawn.length;
  const left = more > 0 ? [h("p", { class: "detail-note" }, `and ${count(more)} more distributions`)] : [];
  const boxes = drawn.map(([row, title]) => histogram(row, title));
  return [...detailSection("Distributions of its parameters", h("div", {}, ...boxes)), ...left];
}
