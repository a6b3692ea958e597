// Joins the reports of a page by module. Every view reads this; nothing changes it.

import { num } from "./format.js";
import { ancestors, operatorName, ownerOf, relativeName } from "./names.js";

/**
 * @typedef {Object<string, any>} Row a row of a report as in the JSON document; read its numbers with `num` or `figureOf`
 *
 * @typedef {Object} Module a module, or an operator that runs in one
 * @property {string} fqn "" is the model itself
 * @property {string} name the fqn below its parent; "(model)" for the model itself
 * @property {string} type class of the module, or name of the operator; "" if unknown
 * @property {number} depth levels below the model
 * @property {number} order place in the order of calls, from 0; modules that never ran come last among their siblings
 * @property {Module|null} parent the nearest module around it that has rows
 * @property {Module[]} children in the order of calls
 * @property {Row[]} shapes a row per call and output
 * @property {Row[]} inputs statistics of what it received, a row per call and tensor
 * @property {Row[]} activations statistics of what it returned, a row per call and tensor
 * @property {Row[]} outputGrads gradients of what it returned, a row per call, pass and tensor
 * @property {Row[]} inputGrads gradients of what it received
 * @property {Parameter[]} parameters its own, not those of its children
 * @property {Row[]} flow rows of the report "flow"
 * @property {Finding[]} findings at it or at its parameters
 * @property {Unmeasured[]} skipped at it or at its parameters
 *
 * @typedef {{fqn: string, name: string, module: Module|null, values: Row[], gradients: Row[]}} Parameter
 * @typedef {{fqn: string, path: string, reason: string, kind?: string}} Unmeasured
 *
 * @typedef {Object} Model
 * @property {Module[]} modules containers before their parts, in the order of calls: the order of a tree
 * @property {Map<string, Module>} byFqn
 * @property {Parameter[]} parameters in the order of the modules
 * @property {Finding[]} findings of all reports
 * @property {Unmeasured[]} skipped of all reports
 * @property {(probe: string) => Report[]} reports of a probe
 * @property {(fqn: string) => Module|null} owner the module of this name, or the nearest one around it
 */

// The lists of a module in which rows of a probe go, in the order in which names and places are taken from them.
const JOINED = { shapes: "shapes", activations: "activations", inputs: "inputs", flow: "flow", grads: "outputGrads" };
const GRADIENTS = { output: "outputGrads", input: "inputGrads" };
const LISTS = ["shapes", "inputs", "activations", "outputGrads", "inputGrads", "parameters", "flow", "findings", "skipped"];

/**
 * Join the reports by module.
 * @param {Payload} payload
 * @returns {Model}
 */
export function joinReports(payload) {
  const byProbe = (probe) => payload.reports.filter((report) => report.probe === probe);
  const byFqn = new Map();
  for (const [probe, list] of Object.entries(JOINED)) {
    byProbe(probe).filter(isOfModules).forEach((report) => report.rows.forEach((row) => addRow(byFqn, row, list)));
  }
  const skipped = unmeasured(payload.reports);
  if (!byFqn.size) addOwners(byFqn, byProbe("grads"));
  if (byFqn.size) skipped.filter((item) => item.kind === "never_called").forEach((item) => moduleAt(byFqn, item.fqn));
  const modules = inTreeOrder(byFqn);
  const owner = (fqn) => ancestors(fqn).map((name) => byFqn.get(name)).find(Boolean) ?? null;
  const parameters = parametersOf(byProbe, owner);
  const findings = payload.reports.flatMap((report) => report.findings);
  findings.forEach((finding) => owner(finding.fqn)?.findings.push(finding));
  skipped.filter((item) => item.kind !== "not_judged").forEach((item) => owner(item.fqn)?.skipped.push(item)); // of a check, not of a module
  return { modules, byFqn, parameters, findings, skipped, reports: byProbe, owner };
}

/** What was not measured: once, though several reports of one run say it. */
function unmeasured(reports) {
  const items = reports.flatMap((report) => report.skipped.map((item) => ({ path: "", ...item })));
  return [...new Map(items.map((item) => [JSON.stringify([item.fqn, item.path, item.reason]), item])).values()];
}

function isOfModules(report) {
  return (report.grouping ?? "nested") === "nested" || report.probe === "flow";
}

function addRow(byFqn, row, list) {
  if (row.kind === "parameter" && list === "outputGrads") return;
  const operator = list === "flow" && row.kind === "function" ? byFqn.get(operatorName(row)) : null;
  const module = operator ?? moduleAt(byFqn, String(row.fqn ?? ""));
  if (list !== "flow" || row.kind === "module") module.type ||= row.type ?? ""; // of a function's row it is the function's name
  module[list === "outputGrads" ? (GRADIENTS[row.kind] ?? list) : list].push(row);
}

/** Modules of a report on parameters alone: those that own them, the first of the model first. */
function addOwners(byFqn, reports) {
  const rows = reports.filter(isOfModules).flatMap((report) => report.rows.filter((row) => row.kind === "parameter"));
  rows.reverse().forEach((row) => (moduleAt(byFqn, ownerOf(String(row.fqn))).type ||= row.type ?? ""));
}

function moduleAt(byFqn, fqn) {
  if (!byFqn.has(fqn)) {
    const lists = Object.fromEntries(LISTS.map((name) => [name, []]));
    byFqn.set(fqn, { fqn, name: fqn || "(model)", type: "", depth: 0, order: byFqn.size, parent: null, children: [], ...lists });
  }
  return byFqn.get(fqn);
}

function inTreeOrder(byFqn) {
  const tops = [];
  for (const module of byFqn.values()) {
    module.parent = module.fqn ? (ancestors(module.fqn).slice(1).map((name) => byFqn.get(name)).find(Boolean) ?? null) : null;
    if (module.parent?.fqn) module.name = relativeName(module.fqn, module.parent.fqn);
    (module.parent?.children ?? tops).push(module);
  }
  const ordered = [];
  const visit = (module, depth) => {
    Object.assign(module, { depth, order: ordered.length });
    ordered.push(module);
    module.children.forEach((child) => visit(child, depth + 1));
  };
  tops.forEach((module) => visit(module, 0));
  return ordered;
}

function parametersOf(byProbe, owner) {
  const found = new Map();
  const at = (fqn) => {
    if (!found.has(fqn)) {
      const module = owner(fqn);
      found.set(fqn, { fqn, name: module?.fqn ? fqn.slice(module.fqn.length + 1) : fqn, module, values: [], gradients: [] });
    }
    return found.get(fqn);
  };
  byProbe("parameters").forEach((report) => report.rows.forEach((row) => at(row.fqn).values.push(row)));
  for (const row of byProbe("grads").filter(isOfModules).flatMap((report) => report.rows)) {
    if (row.kind === "parameter") at(row.fqn).gradients.push(row);
  }
  const place = (parameter) => parameter.module?.order ?? -1;
  const sorted = [...found.values()].sort((a, b) => place(a) - place(b));
  sorted.forEach((parameter) => parameter.module?.parameters.push(parameter));
  return sorted;
}

/**
 * The statistics of the concatenation of several tensors, exactly (never an average of averages): Chan, Golub and
 * LeVeque (1983). Null without rows that have statistics.
 * @param {Row[]} rows
 * @returns {Row|null}
 */
export function merged(rows) {
  const measured = rows.filter((row) => num(row.numel) !== null && "l2" in row);
  if (measured.length < 2) return measured[0] ?? null;
  const total = { merged: measured.length };
  for (const key of ["numel", "zeros", "nan", "inf"]) total[key] = measured.reduce((sum, row) => sum + (row[key] ?? 0), 0);
  const solid = measured.map((row) => ({ n: row.numel - (row.nan ?? 0) - (row.inf ?? 0), row })).filter(({ n }) => n > 0);
  const each = (key) => solid.map(({ row }) => num(row[key]) ?? NaN);
  if (!solid.length) return { ...total, mean: NaN, std: NaN, min: NaN, max: NaN, l2: total.numel ? NaN : 0 };
  const n = solid.reduce((sum, part) => sum + part.n, 0);
  const mean = each("mean").reduce((sum, x, i) => sum + (x * solid[i].n) / n, 0);
  const squares = each("mean").reduce((sum, x, i) => {
    const own = solid[i].n > 1 ? num(solid[i].row.std) ** 2 * (solid[i].n - 1) : 0;
    return sum + own + solid[i].n * (x - mean) ** 2;
  }, 0);
  const std = n > 1 ? Math.sqrt(squares / (n - 1)) : NaN;
  return { ...total, mean, std, min: Math.min(...each("min")), max: Math.max(...each("max")), l2: Math.hypot(...each("l2")) };
}

/**
 * The figure of one statistic over several rows of a module, for a chart; null where there is none.
 * @param {Row[]} rows
 * @param {string} key
 * @returns {number|null}
 */
export function figureOf(rows, key) {
  return num(merged(rows)?.[key]);
}
