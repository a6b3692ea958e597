// The columns of tables: how a cell reads, sorts and looks follows from a column's declaration.

import { columnsOf, declared } from "./declared.js";
import { SHOWN } from "./data.js";
import { cell, num } from "./format.js";
import { scaleOf } from "./color.js";

/**
 * @typedef {Object} TableRow
 * @property {number} id
 * @property {string} fqn of the module, to select it; null if the row is of none
 * @property {string} name as the first column shows it in a tree
 * @property {Row} values
 * @property {TableRow|null} parent
 * @property {TableRow[]} children
 * @property {number} level
 * @property {number} inside rows below it, at any depth
 * @property {Module} [module] where a row is of one
 *
 * @typedef {Object} TableColumn
 * @property {string} key
 * @property {string} title
 * @property {string} group heading above several columns; ""
 * @property {string} hint what it counts
 * @property {boolean} numeric
 * @property {boolean} shown
 * @property {number|null} [drop] the order in which columns leave a table without room for all; null stays
 * @property {number} [least] characters of its words that have room before columns that may leave
 * @property {"bar"|"tick"|""} look bars are shares of the largest, ticks mark a place on the column's scale
 * @property {(row: TableRow) => number|string|null} value for sorting and filtering; NaN is a value
 * @property {(row: TableRow) => string} text
 * @property {(row: TableRow) => string} tone class of the cell: "bad", "dim" or ""
 * @property {(row: TableRow) => number|null} [share] length of the bar, or place of the tick, from 0 to 1
 */

const MODULE_GROUPS = [["inputs", "Inputs", "in"], ["activations", "Activations", "act"], ["outputGrads", "Gradients", "grad"]]; // of modules
const LAST_DROP = 1000; // above all declared ones
const REMARK = 40; // characters of it that have room before any other column
const ROWS_WITH_KEYS = 50; // rows whose further keys may be asked for

/** The columns of one report, in its order; those that hold no information are hidden. */
export function reportColumns(report, rows, asked) {
  const columns = columnsOf([report]);
  const names = new Set(columns.map(({ name }) => name));
  const keys = new Set(report.rows.slice(0, ROWS_WITH_KEYS).flatMap(Object.keys));
  const further = [...keys].filter((name) => !names.has(name)).map(declared).filter(({ kind }) => kind !== "histogram" && kind !== "names");
  const made = (column) => tableColumn(column, rows, (row) => row.values, { view: "report" });
  const shown = columns.map((column) => ({ column, ...made(column) }));
  for (const one of asked ? shown : []) one.drop = null;
  for (const one of shown) one.shown ||= asked || (one.key === "source" && Boolean(report.meta.ops)); // the lines of operators
  const remark = { ...wordColumn("mark", "Remark", (row) => row.values[SHOWN]?.mark ?? ""), least: REMARK, tone: () => "bad" }; // what is wrong with rows, if anything is
  return [...shown, ...further.map((column) => ({ column, ...made(column), shown: false })), ...(!asked && rows.some(remark.text) ? [remark] : [])];
}

/** A column of words. */
export function wordColumn(key, title, text) {
  return { key, title, group: "", hint: "", numeric: false, shown: true, look: "", drop: declared(key).drop, value: text, text, tone: () => "" };
}

/** A column of what `from` finds for a row. */
function tableColumn(column, rows, from, { view, group = "", key = column.name, hint = column.unit ?? "" }) {
  const { name, title, bar, kind } = column;
  const values = rows.map((row) => from(row)?.[name] ?? null).filter((value) => value !== null);
  const numeric = values.length > 0 && values.every((value) => num(value) !== null);
  const made = {
    key, title: title || name, group, hint, numeric,
    drop: column.shown === "mark" ? null : key === "grad.l2" ? LAST_DROP : (column.drop ?? LAST_DROP - 1), // of gradients the norm stays longest
    look: !numeric || !bar ? "" : kind === "figure" ? "tick" : "bar",
    value: (row) => sortable(from(row), column),
    text: (row) => (from(row) ? cell(from(row), column) : ""),
    tone: (row) => toneOf(from(row), column),
  };
  if (kind === "elements" && rows.some((row) => made.value(row) === 1)) made.drop = LAST_DROP; // a tensor that is all zero
  made.shown = isShown(column, rows.map(made.value), view);
  return made.look ? Object.assign(made, { share: shareOf(made, rows) }) : made;
}

/** True if a view shows a column with these values before anybody asks for it. */
function isShown({ shown, usual, aside }, values, view) {
  if (shown === "asked" || shown === "below" || aside.includes(view)) return false;
  if (!values.length) return true;
  if (shown === "varied") return new Set(values).size > 1;
  const quiet = usual !== undefined || shown === "set" || shown === "mark" ? [null, "", 0, usual] : [null];
  return values.some((value) => !quiet.includes(value));
}

function sortable(values, { name, kind }) {
  const value = values?.[name] ?? null;
  if (kind === "elements" && value !== null && values.numel) return value / values.numel;
  if (Array.isArray(value)) return typeof value.flat(9)[0] === "number" ? value.flat(9).reduce((a, b) => a * b, 1) : value.join(", ");
  if (typeof value === "boolean") return value ? 1 : 0;
  return num(value) ?? value;
}

function toneOf(values, { name, shown, usual, merge }) {
  const value = values?.[name] ?? null;
  if (value === null || Number.isNaN(num(value))) return "dim";
  if (shown === "mark") return value ? "bad" : "dim";
  if (typeof value === "number" && (value === usual || (value === 0 && ["sum", "once"].includes(merge)))) return "dim";
  return name === "severity" ? String(value) : "";
}

function shareOf({ look, value }, rows) {
  let at = null; // the column's scale, made when the first row is drawn
  return (row) => {
    at ??= (look === "bar" ? barScale : tickScale)(rows.map(value).filter(Number.isFinite));
    return at(value(row));
  };
}

function barScale(values) {
  const high = Math.max(0, ...values);
  return (value) => (value > 0 && high ? value / high : null);
}

/** A scale that crosses 0 leaves out the outermost figures, which would press all others together. */
function tickScale(values) {
  const sorted = Float64Array.from(values).sort();
  const cut = sorted[0] < 0 ? Math.floor(sorted.length / 50) : 0;
  const { at } = scaleOf(sorted.subarray(cut, sorted.length - cut));
  return (value) => (at(value) === null ? null : Math.min(Math.max(at(value), 0), 1));
}

/** The columns of the joined modules: costs, then the statistics of each probe, then other probes' columns. */
export function moduleColumns(model, rows) {
  const costs = figuresOf(model.reports("shapes"), true);
  const [shapes, others] = [true, false].map((isShape) => costs.filter(({ kind }) => (kind === "shape") === isShape));
  const calls = { ...declared("calls"), unit: "calls" };
  const isNeverCalled = ({ fqn, skipped }) => skipped.some((item) => item.kind === "never_called" && item.fqn === fqn);
  const found = [
    wordColumn("fqn", "Module", (row) => row.module.fqn || "(model)"),
    { ...wordColumn("type", "Type", ({ module }) => module.type || (isNeverCalled(module) ? "never called" : "")), tone: (row) => (row.module.type ? "" : "dim") },
    ...[...shapes, ...(costs.length ? [calls] : []), ...others].map((column) => tableColumn(column, rows, (row) => row.module.figures.shapes, { view: "modules", hint: column.full.slice(0, 1).toLowerCase() + column.full.slice(1) || column.unit || "" })),
  ];
  for (const [list, group, prefix] of MODULE_GROUPS) {
    const reports = model.reports(list === "outputGrads" ? "grads" : list);
    if (rows.some((row) => row.module.figures[list])) found.push(...groupColumns(reports, rows, (row) => row.module.figures[list], { view: group.toLowerCase(), group, prefix }));
  }
  for (const [number, report] of model.others) {
    found.push(...groupColumns([report], rows, (row) => row.module.figures[number], { view: report.probe, group: report.probe, prefix: report.probe }));
  }
  if (model.modules.some(sourceText)) found.push(wordColumn("source", "Source", (row) => sourceText(row.module)));
  return withValues(found, rows);
}

/** The columns of figures that rows of one place merge. */
function figuresOf(reports, withShapes = false) {
  return columnsOf(reports).filter(({ identity, charted, kind }) => !identity && charted && kind !== "text" && kind !== "source" && (withShapes || kind !== "shape"));
}

function groupColumns(reports, rows, from, { view, group, prefix }) {
  return figuresOf(reports).map((column) => tableColumn(column, rows, from, { view, group, key: `${prefix}.${column.name}` }));
}

function withValues(columns, rows) {
  return columns.filter((column, i) => !i || rows.some((row) => (column.value(row) ?? null) !== null));
}

/** The line of the program that called an operator; "" for a module. */
function sourceText({ shapes, activations, inputs, outputGrads }) {
  const row = [shapes, activations, inputs, outputGrads].find((rows) => rows.length)?.[0];
  return row?.source ? cell(row, declared("source")) : "";
}

/** The columns of parameters: what they are, their values before the run, and their gradients. */
export function parameterColumns(model, rows) {
  const reports = ["parameters", "grads"].map(model.reports);
  const places = columnsOf(reports.flat()).filter(({ identity, about, shown }) => !identity && !about && shown !== "asked");
  const either = ({ parameter }) => parameter.values[0] ?? parameter.gradients[0];
  const found = [wordColumn("fqn", "Parameter", (row) => row.parameter.fqn), ...places.map((column) => tableColumn(column, rows, either, { view: "parameters" }))];
  for (const [i, [list, group, prefix]] of [["values", "Values", "value"], ["gradients", "Gradients", "grad"]].entries()) {
    const statistics = groupColumns(reports[i], rows, (row) => row.parameter.figures[list], { view: "parameters", group, prefix });
    if (rows.some((row) => row.parameter.figures[list])) found.push(...statistics);
  }
  return withValues(found, rows);
}
