// A comparison as its views need it: each difference beside the figures that each side measured for itself.

import { num } from "./format.js";

// The kinds of a comparison's rows, and where a side's own figures of the same tensor are: probe and kind.
const MEASURED = { output: ["activations", null], grad_output: ["grads", "output"], grad: ["grads", "parameter"], weight: ["parameters", null] };
const FIGURES = [["mean", "Mean"], ["std", "Std"], ["l2", "L2"]];
const RENAMED = "renamed: ";

/**
 * The comparison that the reports hold, or null.
 * @param {Payload} payload
 * @returns {Comparison|null}
 *
 * @typedef {Object} Comparison
 * @property {Report[]} diffs with the figures of both sides joined
 * @property {Report[]} history of two records: figures over steps, those of B under names that end in _b
 * @property {Side} a
 * @property {Side} b
 *
 * @typedef {{reports: Report[], rows: Map<string, Object<string, any>>}} Side
 */
export function comparisonOf(payload) {
  const found = payload.reports.filter((report) => report.probe === "diff");
  if (!found.length) return null;
  const sides = { a: side(payload, "a"), b: side(payload, "b") };
  const history = payload.reports.filter((report) => report.meta.against);
  return { diffs: found.map((diff) => joined(sides, diff)), history, ...sides };
}

function side(payload, label) {
  const reports = payload.reports.filter((report) => report.meta.side === label);
  const rows = new Map();
  for (const report of reports) {
    const kind = (row) => (report.probe === "parameters" ? null : row.kind); // parameters and buffers have names of their own
    for (const row of report.rows) rows.set(key(report.probe, kind(row), row.fqn, row.call, row.path), row);
  }
  return { reports, rows };
}

function key(probe, kind, fqn, call, path) {
  return JSON.stringify([probe, kind || null, fqn, call || 0, path || ""]);
}

/**
 * The rows that both sides measured for themselves of the tensor that a row compares: [of A, of B], undefined if none.
 */
export function ownRows(sides, diff, row) {
  const [probe, kind] = measured(diff, row);
  const name = nameInB(row);
  const found = (where, fqn) => where.rows.get(key(probe, kind, fqn, row.call, row.path));
  return [row.change === "added" ? undefined : found(sides.a, row.fqn), row.change === "removed" ? undefined : found(sides.b, name)];
}

function measured(diff, row) {
  if (diff.meta.of) return [diff.meta.of, row.kind];
  return Object.hasOwn(MEASURED, row.kind) ? MEASURED[row.kind] : ["activations", null];
}

/** The name of the module in B: another one if it was renamed. */
export function nameInB(row) {
  return row.change?.startsWith(RENAMED) ? row.change.slice(RENAMED.length).replace(/^\(model\)$/, "") : row.fqn;
}

/** The report whose rows have both sides' figures, too: a_mean, b_mean ... */
function joined(sides, diff) {
  const known = new Set();
  const rows = diff.rows.map((row) => {
    const values = { ...row };
    ownRows(sides, diff, row).forEach((own, place) => {
      for (const [name] of FIGURES) {
        if (!own || (own[name] ?? null) === null) continue;
        values["ab"[place] + "_" + name] = own[name];
        known.add(name);
      }
    });
    return values;
  });
  const figures = FIGURES.filter(([name]) => known.has(name)).flatMap(([name, title]) => ["a", "b"].map((label) => ({ name: `${label}_${name}`, title: `${title} ${label.toUpperCase()}`, unit: null })));
  return { ...diff, rows, columns: [...diff.columns, ...figures] };
}

/**
 * How far a row is from agreeing: "beyond" tolerance, "within" it, "equal", or on one side only.
 * @returns {"beyond"|"within"|"equal"|"added"|"removed"}
 */
export function stateOf(row) {
  if (row.change === "added" || row.change === "removed") return row.change;
  if (row.beyond) return "beyond";
  return num(row.times) > 0 ? "within" : "equal";
}

/** The number of rows in each state. */
export function counts(diff) {
  const found = new Map(["beyond", "within", "equal", "added", "removed"].map((state) => [state, 0]));
  for (const row of diff.rows) found.set(stateOf(row), found.get(stateOf(row)) + 1);
  return found;
}

/** The first row beyond tolerance, as hookcli's verdict has it: its finding names the place. */
export function firstBeyond(diff) {
  const error = diff.findings.find((finding) => finding.check === "diff" && finding.severity === "error");
  if (!error) return null;
  return diff.rows.find((row) => row.beyond && row.fqn === error.fqn && num(row.times) === num(error.value)) ?? null;
}
