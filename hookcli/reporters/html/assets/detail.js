// The pane beside a chosen row: all that the reports say about one module.

import { declared, isStatistic, spoken } from "./declared.js";
import { button, h, phrases } from "./dom.js";
import { cell, count, num, number, setting, shape } from "./format.js";
import { histogram } from "./histogram.js";
import { relativeName } from "./names.js";
import { onSelect, selected } from "./selection.js";

const MOST_CALLS = 8;
const FEW_PARAMETERS = 3; // which have a column each, so that no figure is cut
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
  const copy = fqn && button({ class: "detail-copy", "aria-label": "Copy the name" }, () => copyName(fqn, copy), "Copy");
  if (!module) return [detailName(fqn, "", copy)];
  return [
    detailName(fqn, module.fqn === fqn ? module.type : `in ${module.fqn || "(model)"}, ${module.type}`, copy),
    ...findingsList(module.findings, payload.explain ?? {}),
    ...detailSection("Inputs and outputs", callsTable(module)),
    ...detailSection("Attributes", attributesText(module)),
    ...detailSection("Parameters", parametersTable(module.parameters)),
    ...tensorSection(module, row),
    ...parameterDistributions(module.parameters),
    ...detailSection("Not measured", skippedList(module.skipped, module.fqn)),
  ];
}

async function copyName(fqn, copy) {
  try {
    await navigator.clipboard.writeText(fqn);
    copy.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(copy.previousSibling); // some browsers allow no page from a file to copy
    copy.textContent = "Selected";
  }
  setTimeout(() => (copy.textContent = "Copy"), 1500);
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
  ]).filter(([row]) => row.hist);
  const boxes = rows.slice(0, MOST_DISTRIBUTIONS).map(([row, title]) => histogram(row, title));
  const left = rows.length > boxes.length ? [h("p", { class: "detail-note" }, `and ${count(rows.length - boxes.length)} more distributions`)] : [];
  return boxes.length ? [...detailSection("Distributions of its parameters", h("div", {}, boxes)), ...left] : [];
}

/** A part of the pane with a title; nothing without a content. */
export function detailSection(title, content) {
  return content ? [h("h3", { class: "detail-title" }, title), content] : [];
}

/** The head of the pane. */
export function detailName(fqn, type, copy = null) {
  return h("header", { class: "detail-head" }, h("h2", { class: "detail-name" }, fqn || "(model)"), copy, h("span", { class: "detail-type" }, type));
}

/** The findings at a module; each folds out to the explanation of its check. */
function findingsList(findings, explain) {
  return findings.map((finding) => {
    const { check, severity, message, cause, remedy } = finding;
    const about = explain[check];
    return h(
      "div", { class: "detail-finding" },
      h("p", {}, h("span", { class: `badge ${severity}` }, check), " ", message),
      cause ? h("div", { class: "remedy" }, `May follow from ${cause}: fix that first`) : null,
      remedy ? h("div", { class: "remedy" }, `${cause ? "Else" : "Try"}: ${remedy}`) : null,
      about ? h("details", {}, h("summary", {}, about.name), h("p", {}, about.text)) : null,
    );
  });
}

/** Shapes and costs of each call; null without any. */
export function callsTable({ shapes }) {
  if (!shapes.length) return null;
  const calls = shapes.slice(0, MOST_CALLS);
  const columns = Object.keys(calls[0]).map(declared).filter(({ name, kind, unit }) => kind === "shape" || unit || name === "dtype");
  const text = (row, column) => (row[column.name] && !(column.name === "trainable" && row.trainable === row.params) ? cell(row, column) : "");
  const figures = columns.map((column) => [spoken(column), calls.map((row) => text(row, column))]);
  const known = [...figures, ["called at", calls.map((row) => row.source ?? "")]].filter(([, texts]) => texts.some(Boolean));
  if (calls.length === 1) return detailGrid(null, known);
  const more = shapes.length - calls.length;
  const foot = more > 0 ? h("caption", { class: "detail-note" }, `and ${count(more)} more calls`) : null;
  const lines = calls.map((row, i) => [`call ${(row.call ?? 0) + 1}${row.path ? ` ${row.path}` : ""}`, known.map(([, texts]) => texts[i])]);
  return detailGrid(known.map(([name]) => name), lines, foot);
}

/** The module's own attributes, as its class keeps them, and where its code is; null without any. */
function attributesText({ settings: [row] }) {
  const text = (value) => (value === null ? "None" : typeof value === "string" ? value : setting(value));
  const said = Object.entries(row?.attributes ?? {}).map(([name, value]) => `${name} ${text(value)}`);
  if (row?.source) said.push(`forward at ${row.source}`);
  return said.length ? h("p", { class: "detail-attributes" }, phrases(said)) : null;
}

/** A table whose lines have a name, a text per column, and perhaps true where a figure other than 0 is a fault. */
function detailGrid(titles, lines, caption = null) {
  const head = titles ? [h("thead", {}, h("tr", {}, h("td", {}), ...titles.map((title) => h("th", { scope: "col" }, title))))] : [];
  const look = (text, counts) => (counts && text && text !== "0" ? "bad" : null);
  const body = lines.map(([name, texts, counts]) => h("tr", {}, h("th", { scope: "row" }, name), ...texts.map((text) => h("td", { class: look(text, counts) }, text))));
  return h("div", { class: "detail-scroll" }, h("table", { class: "detail-grid" }, caption, ...head, h("tbody", {}, ...body)));
}

/**
 * A column of statistics per tensor.
 * @param {[string, Row][]} columns title and row of each
 */
export function statisticsTable(columns) {
  const names = new Set(columns.flatMap(([, row]) => Object.keys(row)));
  const shapes = columns.map(([, row]) => (row.shape ? cell(row, { name: "shape" }) : ""));
  const lines = [...names].map(declared).filter(isStatistic).map((column) => [column, columns.map(([, row]) => (column.name in row ? cell(row, column) || "0" : ""))]);
  const told = lines.filter(([{ kind }, texts]) => (kind !== "faults" && kind !== "elements") || texts.some((text) => text !== "0" && text !== ""));
  return detailGrid(columns.map(([title]) => title), [...(shapes.some(Boolean) ? [["shape", shapes]] : []), ...told.map(([column, texts]) => [spoken(column), texts, column.kind === "faults"])]);
}

/** The module's own parameters and buffers, a line each; null without any. */
function parametersTable(parameters) {
  if (!parameters.length) return null;
  const [std, l2] = ["std", "l2"].map((name) => spoken(declared(name)));
  const titles = ["shape", std, l2, `grad ${l2}`, "ratio"];
  const lines = parameters.map(({ name, values: [value], gradients: [gradient] }) => {
    const [size, slope] = [value, gradient].map((row) => num(row?.l2));
    const ratio = size > 0 && slope !== null ? slope / size : null;
    return [name, [shape(value?.shape ?? gradient?.shape), ...[num(value?.std), size, slope, ratio].map(number)]];
  });
  const known = titles.flatMap((_, i) => (lines.some(([, texts]) => texts[i] !== "-") ? [i] : []));
  if (lines.length <= FEW_PARAMETERS) return detailGrid(lines.map(([name]) => name), known.map((i) => [titles[i], lines.map(([, texts]) => texts[i])]));
  const kept = (texts) => known.map((i) => texts[i]);
  return detailGrid(kept(titles), lines.map(([name, texts]) => [name, kept(texts)]));
}

/**
 * What was not measured, and why; null if everything was.
 * @param {string} fqn of the module
 */
function skippedList(skipped, fqn) {
  if (!skipped.length) return null;
  const lines = skipped.map((item) => {
    const name = item.fqn === fqn ? item.path : [relativeName(item.fqn, fqn), item.path].filter(Boolean).join(" ");
    return name ? `${name}: ${item.reason}` : item.reason;
  });
  return h("ul", { class: "detail-skipped" }, ...lines.map((line) => h("li", {}, line)));
}
