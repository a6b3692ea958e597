// The columns of tables: how a cell reads, sorts and looks.

import { cell, mark, num } from "./format.js";
import { scaleOf } from "./color.js";
import { merged } from "./model.js";

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
 * @property {"bar"|"tick"|""} look bars are shares of the largest, ticks mark a place on the column's scale
 * @property {(row: TableRow) => number|string|null} value for sorting and filtering; NaN is a value
 * @property {(row: TableRow) => string} text
 * @property {(row: TableRow) => string} tone class of the cell: "bad", "dim" or ""
 * @property {(row: TableRow) => number|null} [share] length of the bar, or place of the tick, from 0 to 1
 */

const BARS = new Set(["params", "trainable", "macs", "kept", "zeros", "us", "forward_us", "forward_self_us", "backward_us", "backward_self_us", "bytes", "size", "seconds", "times", "kept_bytes", "tensor_bytes", "read_bytes", "written_bytes"]);
const ON_REQUEST = new Set(["index", "depth", "trainable", "line", "id", "next", "source", "differs", "remedy", "cause", "params_share", "macs_share", "hint", "order", "numel"]);
const TICKS = new Set(["mean", "std", "min", "max", "l2", "out_l2", "before_l2", "weight", "update", "ratio"]);
const COSTS = ["macs", "kept", "read_bytes", "written_bytes"];
const QUIET = new Set([null, undefined, "", 0, false, "float32", "train"]);
const SET_ONLY = new Set(["path", "call", "calls", "pass", "flags", "phase", "rank", "dtype", "fired", "nan", "inf", "grad_nan", "grad_inf"]);
const STATS = { mean: "Mean", std: "Std", min: "Min", max: "Max", l2: "L2", zeros: "Zeros", nan: "NaN", inf: "Inf" };

/** The columns of one report, in its order; those that say nothing are hidden. */
export function reportColumns(report, rows, asked) {
  const names = report.columns.map((column) => column.name);
  const more = [...new Set(report.rows.slice(0, 50).flatMap(Object.keys))].filter((name) => !names.includes(name) && !["hist", "input_names"].includes(name));
  const declared = [...report.columns, ...more.map((name) => ({ name, title: name.replaceAll("_", " "), unit: null, extra: true }))];
  return declared.map((column) => {
    const made = column_(column.name, column.title || column.name, rows, (row) => row.values, column.unit);
    return { ...made, shown: asked ? !column.extra : !column.extra && (speaks(column.name, rows) || isOfOperators(report, column)) };
  }).concat(asked ? [] : remarkColumn(rows));
}

/** True for the lines of operators; `source` of findings is on request. */
function isOfOperators(report, { name }) {
  return name === "source" && Boolean(report.meta.ops);
}

/** What is wrong with rows, in words; no column if nothing is. */
function remarkColumn(rows) {
  const said = rows.some((row) => mark(row.values));
  const text = (row) => mark(row.values);
  return said ? [{ key: "mark", title: "Remark", group: "", hint: "", numeric: false, shown: true, look: "", value: text, text, tone: () => "bad" }] : [];
}

function speaks(name, rows) {
  if (ON_REQUEST.has(name)) return false;
  if (!rows.length) return true;
  if (SET_ONLY.has(name)) return rows.some((row) => !QUIET.has(row.values[name]));
  if (name === "kind") return new Set(rows.map((row) => row.values.kind)).size > 1;
  return rows.some((row) => (row.values[name] ?? null) !== null);
}

/** A column of what `from` finds for a row. */
function column_(key, title, rows, from, unit = null, group = "", name = key) {
  const first = rows.map((row) => from(row)?.[name] ?? null);
  const numbers = first.filter((value) => num(value) !== null);
  const numeric = numbers.length > 0 && numbers.length === first.filter((value) => value !== null).length;
  const float = numeric && numbers.some((value) => !Number.isInteger(value));
  const made = {
    key, title, group, numeric, shown: true,
    hint: unit ?? "",
    look: !numeric ? "" : BARS.has(name) ? "bar" : TICKS.has(name) ? "tick" : "",
    value: (row) => sortable(from(row), name),
    text: (row) => (from(row) ? cell(from(row), name, float) : ""),
    tone: (row) => toneOf(from(row), name),
  };
  return made.look ? Object.assign(made, { share: shareOf(made, rows) }) : made;
}

function sortable(values, name) {
  const value = values?.[name] ?? null;
  if (name === "zeros" && value !== null && values.numel) return value / values.numel;
  if (Array.isArray(value)) return typeof value.flat(9)[0] === "number" ? value.flat(9).reduce((a, b) => a * b, 1) : value.join(", ");
  if (typeof value === "boolean") return value ? 1 : 0;
  return num(value) ?? value;
}

function toneOf(values, name) {
  const value = values?.[name] ?? null;
  if (value === null || Number.isNaN(num(value))) return "dim";
  if (["nan", "inf", "grad_nan", "grad_inf"].includes(name)) return value ? "bad" : "dim";
  if (name === "calls" && value === 1) return "dim";
  return value === 0 && ["zeros", "macs", "params", "kept"].includes(name) ? "dim" : name === "severity" ? String(value) : "";
}

function shareOf(column, rows) {
  let scale = null;
  const bar = column.look === "bar";
  return (row) => {
    scale ??= bar ? { high: Math.max(0, ...finite(rows, column)) } : spread(finite(rows, column));
    const value = column.value(row);
    if (bar) return value > 0 && scale.high ? value / scale.high : null;
    return typeof value === "number" ? scale.at(value) : null;
  };
}

function* finite(rows, column) {
  for (const row of rows) {
    const value = column.value(row);
    if (Number.isFinite(value)) yield value;
  }
}

/** The scale of a column; one that crosses 0 leaves out the outermost figures, which would press all others together. */
function spread(values) {
  const sorted = Float64Array.from(values).sort();
  const crosses = sorted[0] < 0;
  const cut = crosses ? Math.floor(sorted.length / 50) : 0;
  const scale = scaleOf(sorted.subarray(cut, sorted.length - cut));
  return { at: (value) => (scale.at(value) === null ? null : Math.min(Math.max(scale.at(value), 0), 1)) };
}

/** The columns of the joined modules. */
export function moduleColumns(model, rows) {
  const { modules } = model;
  const shapes = remembered((module) => totalOf(module.shapes));
  const of = (list) => remembered((module) => merged(module[list]));
  const named = (key, title, unit, group = "", name = key) => column_(key, title, rows, (row) => shapes(row.module), unit, group, name);
  const found = [
    own("fqn", "Module", (module) => module.fqn || "(model)"),
    { ...own("type", "Type", typeText), tone: (row) => (row.module.type ? "" : "dim") },
    named("input_shape", "Input"),
    named("output_shape", "Output"),
    named("calls", "Calls", "calls"),
    named("params", "Params", "parameters"),
    named("trainable", "Trainable", "parameters"),
    named("macs", "MACs", "multiply-accumulates"),
    named("kept", "Kept", "bytes kept for backward"),
    named("read_bytes", "Read", "bytes read"),
    named("written_bytes", "Written", "bytes written"),
  ];
  for (const [list, group, prefix] of [["inputs", "Inputs", "in"], ["activations", "Activations", "act"], ["outputGrads", "Gradients", "grad"]]) {
    if (!modules.some((module) => module[list].length)) continue;
    const from = of(list);
    found.push(...Object.entries(STATS).map(([name, title]) => column_(`${prefix}.${name}`, title, rows, (row) => from(row.module), null, group, name)));
  }
  if (modules.some(sourceText)) found.push(own("source", "Source", sourceText));
  const quiet = new Set(["trainable", "read_bytes", "written_bytes", "act.min", "grad.min", "grad.max", "in.min", "in.max", "grad.zeros", "act.l2", "in.l2", "grad.mean", "input_shape"]);
  const shown = (column) => !quiet.has(column.key) && rows.some((row) => (column.value(row) ?? null) !== null && !(isSetOnly(column.key) && column.value(row) <= Number(column.key === "calls")));
  return found.map((column) => ({ ...column, shown: shown(column) })).filter((column) => column.shown || rows.some((row) => (column.value(row) ?? null) !== null));
}

function isSetOnly(key) {
  return /(^|\.)(calls|nan|inf)$/.test(key);
}

/** The line of the program that called an operator; "" for a module. */
function sourceText({ shapes, activations, inputs, outputGrads }) {
  const [row] = [shapes, activations, inputs, outputGrads].flatMap((rows) => rows.slice(0, 1));
  return row?.source ? cell(row, "source") : "";
}

/** The type of a module, or why there is none. */
function typeText(module) {
  return module.type || (module.skipped.some((item) => item.kind === "never_called" && item.fqn === module.fqn) ? "never called" : "");
}

function own(key, title, text) {
  return { key, title, group: "", hint: "", numeric: false, shown: true, look: "", value: (row) => text(row.module), text: (row) => text(row.module), tone: () => "" };
}

/** One row for the calls of a module: shapes of each, costs of all. */
function totalOf(rows) {
  if (!rows.length) return null;
  const sum = (name) => (rows.some((row) => (row[name] ?? null) !== null) ? rows.reduce((total, row) => total + (row[name] ?? 0), 0) : null);
  const distinct = (name) => {
    const all = [...new Map(rows.filter((row) => row[name]).map((row) => [JSON.stringify(row[name]), row[name]])).values()];
    return all.length > 1 ? { [name]: null, [`${name}s`]: all } : {};
  };
  const calls = new Set(rows.map((row) => row.call)).size;
  return { ...rows[0], ...distinct("input_shape"), ...distinct("output_shape"), ...Object.fromEntries(COSTS.map((name) => [name, sum(name)])), calls };
}

function remembered(compute) {
  const known = new Map();
  return (key) => {
    if (!known.has(key)) known.set(key, compute(key));
    return known.get(key);
  };
}

/** The columns of parameters: their values before the run and their gradients. */
export function parameterColumns(rows) {
  const values = remembered((parameter) => merged(parameter.values));
  const gradients = remembered((parameter) => merged(parameter.gradients));
  const either = (row) => row.parameter.values[0] ?? row.parameter.gradients[0];
  const found = [
    { ...column_("fqn", "Parameter", rows, (row) => row.parameter), text: (row) => row.parameter.fqn },
    column_("type", "Type", rows, either),
    column_("shape", "Shape", rows, either),
    column_("dtype", "Dtype", rows, either),
    column_("numel", "Elements", rows, either, "elements"),
  ];
  found[4].look = "";
  for (const [from, group, prefix] of [[values, "Values", "value"], [gradients, "Gradients", "grad"]]) {
    if (!rows.some((row) => from(row.parameter))) continue;
    found.push(...Object.entries(STATS).map(([name, title]) => column_(`${prefix}.${name}`, title, rows, (row) => from(row.parameter), null, group, name)));
  }
  const speaking = (column) => rows.some((row) => (column.value(row) ?? null) !== null && !(isSetOnly(column.key) && !column.value(row)));
  return found.map((column) => ({ ...column, shown: speaking(column) && !/\.(min|max)$/.test(column.key) && !(column.key === "dtype" && rows.every((row) => either(row)?.dtype === "float32")) }));
}
