// Tables and lists of the details of a module.
import { h } from "./dom.js";
import { declared, isStatistic, spoken } from "./declared.js";
import { cell, count, num, number, shape } from "./format.js";
import { relativeName } from "./names.js";
import { advice } from "./verdict.js";

const MOST_CALLS = 8;

/** The findings at a module; each folds out to the explanation of its check. */
export function findingsList(findings, explain) {
  return findings.map((finding) => {
    const { check, severity, message } = finding;
    const about = explain[check];
    const text = about ? h("details", {}, h("summary", {}, about.name), h("p", {}, about.text)) : null;
    const head = h("p", {}, h("span", { class: `badge ${severity}` }, check), " ", message);
    return h("div", { class: "detail-finding" }, head, ...advice(finding), text);
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

/** A table whose lines have a name and a text per column. */
function detailGrid(titles, lines, caption = null) {
  const head = titles ? [h("thead", {}, h("tr", {}, h("td", {}), ...titles.map((title) => h("th", { scope: "col" }, title))))] : [];
  const body = lines.map(([name, texts]) => h("tr", {}, h("th", { scope: "row" }, name), ...texts.map((text) => h("td", {}, text))));
  return h("div", { class: "detail-scroll" }, h("table", { class: "detail-grid" }, caption, ...head, h("tbody", {}, ...body)));
}

/**
 * A column of statistics per tensor.
 * @param {[string, Row][]} columns title and row of each
 */
export function statisticsTable(columns) {
  const names = new Set(columns.flatMap(([, row]) => Object.keys(row)));
  const shapes = columns.map(([, row]) => (row.shape ? shape(row.shape) : ""));
  const lines = [...names].map(declared).filter(isStatistic).map((column) => [column, columns.map(([, row]) => (column.name in row ? cell(row, column) || "0" : ""))]);
  const told = lines.filter(([{ kind }, texts]) => (kind !== "faults" && kind !== "elements") || texts.some((text) => text !== "0" && text !== ""));
  return detailGrid(columns.map(([title]) => title), [...(shapes.some(Boolean) ? [["shape", shapes]] : []), ...told.map(([column, texts]) => [spoken(column), texts])]);
}

/** The module's own parameters and buffers, a line each; null without any. */
export function parametersTable(parameters) {
  if (!parameters.length) return null;
  const [std, l2] = ["std", "l2"].map((name) => spoken(declared(name)));
  const titles = ["shape", std, l2, `gradient ${l2}`, "ratio"];
  const lines = parameters.map(({ name, values: [value], gradients: [gradient] }) => {
    const [size, slope] = [value, gradient].map((row) => num(row?.l2));
    const ratio = size > 0 && slope !== null ? slope / size : null;
    return [name, [shape(value?.shape ?? gradient?.shape), ...[num(value?.std), size, slope, ratio].map(number)]];
  });
  const known = titles.flatMap((_, i) => (lines.some(([, texts]) => texts[i] !== "-") ? [i] : []));
  const kept = (texts) => known.map((i) => texts[i]);
  return detailGrid(kept(titles), lines.map(([name, texts]) => [name, kept(texts)]));
}

/**
 * What was not measured, and why; null if everything was.
 * @param {string} fqn of the module
 */
export function skippedList(skipped, fqn) {
  if (!skipped.length) return null;
  const lines = skipped.map((item) => {
    const name = item.fqn === fqn ? item.path : [relativeName(item.fqn, fqn), item.path].filter(Boolean).join(" ");
    return name ? `${name}: ${item.reason}` : item.reason;
  });
  return h("ul", { class: "detail-skipped" }, ...lines.map((line) => h("li", {}, line)));
}
