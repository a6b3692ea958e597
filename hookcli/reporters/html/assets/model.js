// The reports of a page, joined by module. Every view reads this; nothing changes it.

import { showRows } from "./data.js";
import { ancestors } from "./names.js";

/**
 * @typedef {Object<string, any>} Row a row of a report as in the JSON document; read its numbers with `num`
 *
 * @typedef {Object} Module a module, or an operator that runs in one
 * @property {string} fqn "" is the model itself
 * @property {string} name the fqn below its parent; "(model)" for the model itself
 * @property {string} type class of the module, or name of the operator; "" if unknown
 * @property {Module|null} parent the nearest module around it that has rows
 * @property {Module[]} children in the order of calls
 * @property {Row[]} shapes a row per call and output
 * @property {Row[]} inputs statistics of what it received, a row per call and tensor
 * @property {Row[]} activations statistics of what it returned, a row per call and tensor
 * @property {Row[]} outputGrads gradients of what it returned, a row per call, pass and tensor
 * @property {Row[]} inputGrads gradients of what it received
 * @property {Parameter[]} parameters its own, not its children's
 * @property {Row[]} settings its attributes and the line of its code, in one row
 * @property {Object<string, Row>} figures by kind of rows, what they are together; also under the number of a report that hookcli's own probes did not make
 * @property {Finding[]} findings at it or at its parameters
 * @property {Unmeasured[]} skipped at it or at its parameters
 *
 * @typedef {{fqn: string, name: string, module: Module|null, values: Row[], gradients: Row[], figures: Object<string, Row>}} Parameter
 * @typedef {{fqn: string, path: string, reason: string, kind?: string}} Unmeasured
 *
 * @typedef {Object} Model
 * @property {Module[]} modules containers before their parts, in the order of calls: the order of a tree
 * @property {Map<string, Module>} byFqn
 * @property {Parameter[]} parameters in the order of the modules
 * @property {Finding[]} findings of all reports
 * @property {Unmeasured[]} skipped of all reports
 * @property {(probe: string) => Report[]} reports of a probe
 * @property {[string, Report][]} others on modules, of other probes than hookcli's own, by number
 * @property {(fqn: string) => Module|null} owner the module of this name, or the nearest one around it
 */

const ROW_KINDS = ["shapes", "inputs", "activations", "outputGrads", "inputGrads", "settings", "values", "gradients"]; // of rows
const NO_JOIN = { modules: [], parameters: [], merged: {}, reports: [] };

/** Join the reports by module, as the page's data have them joined. */
export function joinReports({ reports }) {
  const join = reports.find((report) => report.joined)?.joined ?? NO_JOIN;
  const byProbe = (probe) => reports.filter((report) => report.probe === probe);
  const modules = join.modules.map((module) => Object.assign(placeOf(module, join), { children: [], parameters: [], findings: [], skipped: [] }));
  const parameters = join.parameters.map((parameter) => placeOf(parameter, join));
  for (const module of modules) module.parent = modules[module.parent] ?? null;
  for (const module of modules) module.parent?.children.push(module);
  for (const parameter of parameters) parameter.module = modules[parameter.module] ?? null;
  for (const parameter of parameters) parameter.module?.parameters.push(parameter);
  for (const [kind, { places, rows, texts }] of Object.entries(join.merged)) {
    showRows({ rows }, { texts });
    const owners = kind === "values" || kind === "gradients" ? parameters : modules;
    places.forEach((place, i) => (owners[place].figures[kind] = rows[i]));
  }
  const byFqn = new Map(modules.map((module) => [module.fqn, module]));
  const owner = (fqn) => ancestors(fqn).map((name) => byFqn.get(name)).find(Boolean) ?? null;
  const skipped = distinct(reports.flatMap((report) => report.skipped.map((item) => ({ path: "", ...item }))), ({ fqn, path, reason }) => [fqn, path, reason]);
  const findings = distinct(reports.flatMap((report) => report.findings), ({ check, fqn, message }) => [check, fqn, message]);
  findings.forEach((finding) => owner(finding.fqn)?.findings.push(finding));
  skipped.filter((item) => item.kind !== "not_judged").forEach((item) => owner(item.fqn)?.skipped.push(item)); // of a check, not of a module
  const others = join.reports.map(String).filter((number) => modules.some(({ figures }) => figures[number])).map((number) => [number, join.all[number]]);
  return { modules, byFqn, parameters, findings, skipped, reports: byProbe, others, owner };
}

/** A module or parameter with its rows by kind, and the figures of those kinds that it has one row of. */
function placeOf({ rows, ...place }, { all }) {
  const lists = Object.entries(rows).map(([kind, found]) => [kind, found.map(([report, row]) => all[report].rows[row])]);
  const figures = Object.fromEntries(lists.map(([kind, [first]]) => [kind, kind === "shapes" ? { calls: 1, ...first } : first]));
  return { ...Object.fromEntries(ROW_KINDS.map((kind) => [kind, []])), ...Object.fromEntries(lists), ...place, figures };
}

/** Items that several reports have, once. */
function distinct(items, key) {
  return [...new Map(items.map((item) => [JSON.stringify(key(item)), item])).values()];
}
