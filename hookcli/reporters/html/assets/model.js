// Joins the reports of a page by module. Every view reads this; nothing changes it.

import { ancestors, inTree, operatorName, ownerOf, relativeName } from "./names.js";

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
 * @property {Row[]} callsInOrder rows of lists of calls
 * @property {Row[]} settings its attributes and the line of its code, in one row
 * @property {Map<Report, Row[]>} others rows of reports on modules that hookcli's own probes did not make
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
 * @property {Report[]} others on modules, of other probes than hookcli's own
 * @property {(fqn: string) => Module|null} owner the module of this name, or the nearest one around it
 */

// The lists of a module in which rows of a probe, or of lists of calls, go, in the order in which names and places are taken from them.
const JOINED = { shapes: "shapes", activations: "activations", inputs: "inputs", "(calls)": "callsInOrder", grads: "outputGrads", settings: "settings" };
const NOT_OF_MODULES = ["parameters", "check", "diff"];
const GRADIENTS = { output: "outputGrads", input: "inputGrads" };
const LISTS = ["shapes", "inputs", "activations", "outputGrads", "inputGrads", "parameters", "callsInOrder", "settings", "findings", "skipped"];

/** Join the reports by module. */
export function joinReports(payload) {
  const byProbe = (probe) => payload.reports.filter((report) => report.probe === probe);
  const byFqn = new Map();
  const gradientRows = byProbe("grads").filter(isOfModules).flatMap((report) => report.rows.filter((row) => row.kind === "parameter"));
  for (const [probe, list] of Object.entries(JOINED)) {
    (list === "callsInOrder" ? payload.reports.filter(isOfCalls) : byProbe(probe).filter(isOfModules)).forEach((report) => report.rows.forEach((row) => addRow(byFqn, row, list)));
  }
  const others = payload.reports.filter((report) => isOfModules(report) && !Object.hasOwn(JOINED, report.probe) && !NOT_OF_MODULES.includes(report.probe));
  for (const report of others) {
    for (const [fqn, rows] of Map.groupBy(report.rows, (row) => row.fqn)) byFqn.get(fqn)?.others.set(report, rows);
  }
  const unmeasured = payload.reports.flatMap((report) => report.skipped.map((item) => ({ path: "", ...item })));
  const skipped = distinct(unmeasured, ({ fqn, path, reason }) => [fqn, path, reason]);
  if (!byFqn.size) gradientRows.toReversed().forEach((row) => (moduleAt(byFqn, ownerOf(String(row.fqn))).type ||= row.type ?? "")); // the first of the model first
  if (byFqn.size) skipped.filter((item) => item.kind === "never_called").forEach((item) => moduleAt(byFqn, item.fqn));
  const modules = inTreeOrder(byFqn);
  const owner = (fqn) => ancestors(fqn).map((name) => byFqn.get(name)).find(Boolean) ?? null;
  const parameters = parametersOf(byProbe("parameters").flatMap((report) => report.rows), gradientRows, owner);
  const findings = distinct(payload.reports.flatMap((report) => report.findings), ({ check, fqn, message }) => [check, fqn, message]);
  findings.forEach((finding) => owner(finding.fqn)?.findings.push(finding));
  skipped.filter((item) => item.kind !== "not_judged").forEach((item) => owner(item.fqn)?.skipped.push(item)); // of a check, not of a module
  return { modules, byFqn, parameters, findings, skipped, reports: byProbe, others, owner };
}

/** Items that several reports have, once. */
function distinct(items, key) {
  return [...new Map(items.map((item) => [JSON.stringify(key(item)), item])).values()];
}

function isOfModules(report) {
  return (report.grouping ?? "nested") === "nested";
}

/** True for a list of calls, each with the ids of those that its inputs come from. */
function isOfCalls(report) {
  return report.grouping === "list" && Array.isArray(report.rows[0]?.inputs);
}

function addRow(byFqn, row, list) {
  if (row.kind === "parameter" && list === "outputGrads") return;
  const operator = list === "callsInOrder" && row.kind === "function" ? byFqn.get(operatorName(row)) : null;
  const module = operator ?? moduleAt(byFqn, String(row.fqn ?? ""));
  if (list !== "callsInOrder" || row.kind === "module") module.type ||= row.type ?? ""; // of a function's row it is the function's name
  module[list === "outputGrads" ? (GRADIENTS[row.kind] ?? list) : list].push(row);
}

function moduleAt(byFqn, fqn) {
  if (!byFqn.has(fqn)) {
    const lists = Object.fromEntries(LISTS.map((name) => [name, []]));
    byFqn.set(fqn, { fqn, name: fqn || "(model)", type: "", depth: 0, order: byFqn.size, parent: null, children: [], others: new Map(), ...lists });
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
  const ordered = inTree(tops);
  ordered.forEach((module, order) => Object.assign(module, { order, depth: module.parent ? module.parent.depth + 1 : 0 }));
  return ordered;
}

function parametersOf(valueRows, gradientRows, owner) {
  const found = new Map();
  const at = (fqn) => {
    if (!found.has(fqn)) {
      const module = owner(fqn);
      found.set(fqn, { fqn, name: module?.fqn ? fqn.slice(module.fqn.length + 1) : fqn, module, values: [], gradients: [] });
    }
    return found.get(fqn);
  };
  valueRows.forEach((row) => at(row.fqn).values.push(row));
  gradientRows.forEach((row) => at(row.fqn).gradients.push(row));
  const place = (parameter) => parameter.module?.order ?? -1;
  const sorted = [...found.values()].sort((a, b) => place(a) - place(b));
  sorted.forEach((parameter) => parameter.module?.parameters.push(parameter));
  return sorted;
}
