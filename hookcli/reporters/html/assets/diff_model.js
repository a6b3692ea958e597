// A comparison as its views need it: each difference beside the figures that each side measured for itself.

import { declared } from "./declared.js";
import { joinReports } from "./model.js";
import { num } from "./format.js";

// The kinds of a comparison's rows, and where a side's own figures of the same tensor are: probe and kind.
const MEASURED = { output: ["activations", null], grad_output: ["grads", "output"], grad_input: ["grads", "input"], grad: ["grads", "parameter"], received: ["inputs", null], weight: ["parameters", null] };
const KINDS = { output: "Outputs", received: "Inputs", grad_output: "Gradients of outputs", grad_input: "Gradients of inputs", grad: "Gradients of parameters", weight: "Parameters and buffers", parameter: "Gradients of parameters", input: "Gradients of inputs" };
const RENAMED = "renamed: ";

/**
 * @typedef {Object} Comparison
 * @property {Report[]} diffs with the figures of both sides joined
 * @property {Part[]} parts the rows of the diffs by kind, a tab each
 * @property {Report[]} history of two records: figures over steps, B's under names that end in _b
 * @property {Side} a
 * @property {Side} b
 *
 * @typedef {{title: string, diff: Report, kind: string, rows: Row[]}} Part
 * @typedef {{label: string, reports: Report[], rows: Map<string, Row>, model: Model}} Side
 */

/** The comparison that the reports hold, or null. */
export function comparisonOf(payload) {
  const found = payload.reports.filter((report) => report.probe === "diff");
  if (!found.length) return null;
  const [a, b] = ["a", "b"].map((label) => sideOf(payload, label));
  const diffs = found.map((diff) => joinedSides([a, b], diff));
  const history = payload.reports.filter((report) => report.meta.against);
  return { diffs, parts: diffs.flatMap(partsOf), history, a, b };
}

function sideOf(payload, label) {
  const reports = payload.reports.filter((report) => report.meta.side === label);
  const rows = new Map();
  for (const report of reports) {
    const kind = (row) => (report.probe === "parameters" ? null : row.kind); // parameters and buffers share no name
    for (const row of report.rows) rows.set(tensorKey(report.probe, kind(row), row.fqn, row), row);
  }
  return { label, reports, rows, model: joinReports({ ...payload, reports }) };
}

function tensorKey(probe, kind, fqn, { call, path }) {
  return JSON.stringify([probe, kind || null, fqn, call || 0, path || ""]);
}

function partsOf(diff) {
  const kinds = Map.groupBy(diff.rows, (row) => tensorKind(diff, row) ?? "");
  const probe = isOverSteps(diff) ? "Steps" : String(diff.meta.of ?? "Differences");
  const named = (kind) => (Object.hasOwn(KINDS, kind) ? KINDS[kind] : kind || probe.slice(0, 1).toUpperCase() + probe.slice(1));
  return [...kinds].map(([kind, rows]) => ({ title: named(kind), diff, kind, rows }));
}

/** The kind of a row's tensor; "received" for the input of a module: in a saved report of gradients "input" is one's gradient. */
export function tensorKind(diff, row) {
  return diff.meta.dump && row.kind === "input" ? "received" : row.kind;
}

/** True if the rows of a comparison of records are steps, not tensors. */
export function isOverSteps(diff) {
  return diff.columns.some((column) => column.name === "step");
}

/** The rows of A's and B's own reports on the tensor that a row compares, undefined where a side has none. */
export function ownRows({ a, b }, diff, row) {
  const measured = tensorKind(diff, row);
  const [probe, kind] = diff.meta.of ? [diff.meta.of, row.kind] : Object.hasOwn(MEASURED, measured) ? MEASURED[measured] : ["activations", null];
  const ours = row.change === "added" ? undefined : a.rows.get(tensorKey(probe, kind, row.fqn, row));
  return [ours, row.change === "removed" ? undefined : b.rows.get(tensorKey(probe, kind, nameInB(row), row))];
}

/** The largest excess of each module's outputs, by the module's name on a side: "a" or "b". */
export function excessOfModules({ parts }, label) {
  const found = new Map();
  const outputs = parts.filter(({ kind, diff }) => kind === "output" || diff.meta.of === "activations");
  for (const row of outputs.flatMap(({ rows }) => rows)) {
    const fqn = label === "b" ? nameInB(row) : row.fqn;
    if (num(row.times) !== null) found.set(fqn, Math.max(num(row.times), found.get(fqn) ?? 0));
  }
  const most = Math.max(1, ...[...found.values()].filter(Number.isFinite));
  for (const [fqn, times] of found) if (times === Infinity) found.set(fqn, 10 * most); // a separate colour, above all others
  return found;
}

/** The name of a row's place in B: another one if its module was renamed. */
export function nameInB(row) {
  return row.change?.startsWith(RENAMED) ? row.change.slice(RENAMED.length).replace(/^\(model\)$/, "") : row.fqn;
}

/** The report whose rows have both sides' figures, too: a_mean, b_mean ... */
function joinedSides([a, b], diff) {
  const known = new Set();
  const rows = diff.rows.map((row) => {
    const figures = ownRows({ a, b }, diff, row).flatMap((own, place) => Object.keys(own ?? {}).filter(isOfSides).map((name) => [`${"ab"[place]}_${name}`, own[name], name]));
    figures.forEach(([, , name]) => known.add(name));
    return { ...row, ...Object.fromEntries(figures) };
  });
  const ofSide = ({ name, title, kind, merge }, side) => ({ name: `${side}_${name}`, title: `${title} ${side.toUpperCase()}`, unit: null, kind, drop: 0, aside: merge === "norm" ? ["diff"] : [] }); // norms are asked for
  const columns = [...known].map(declared).flatMap((column) => ["a", "b"].map((side) => ofSide(column, side)));
  return { ...diff, rows, columns: [...diff.columns, ...columns.filter(({ name }) => rows.some((row) => name in row))] };
}

/** True for figures of tensors that tell how far two sides are apart: no extremes. */
function isOfSides(name) {
  const { about, kind, merge } = declared(name);
  return about === "output" && kind === "figure" && !["least", "most"].includes(merge);
}

/** How far the sides of a row agree. */
export function agreement(row) {
  if (row.change === "added" || row.change === "removed") return row.change;
  if (row.beyond) return "beyond";
  return num(row.times) > 0 ? "within" : "equal";
}

/** The findings that make the comparison fail: settings that differ, and the first difference beyond tolerance. */
export function errorsOf(diff) {
  return diff.findings.filter((finding) => finding.check === "diff" && finding.severity === "error");
}

/** The first row beyond tolerance, which the report's finding names; null if all agree. */
export function firstBeyond(diff) {
  const of = ({ fqn, value }) => diff.rows.find((row) => row.beyond && row.fqn === fqn && num(row.times) === num(value));
  return errorsOf(diff).map(of).find(Boolean) ?? null;
}
