// Tables of one report, of the joined modules and of the parameters.

import { moduleColumns, parameterColumns, reportColumns } from "./columns.js";
import { ancestors, relativeName } from "./names.js";
import { reportNotes } from "./notes.js";
import { mountTable } from "./table.js";
import { linked } from "./table_state.js";

/** Mount the table of one report, in the order in which its command wrote it. */
export function mountReport(container, { payload, model }, report, lines) {
  const nested = isTree(report, payload.view);
  const rows = linked(nested ? nestedRows(report.rows) : report.rows.map((values) => ({ values, parent: null, name: nameOf(values) })));
  rows.forEach((row) => (row.fqn = "fqn" in row.values ? (model.owner(String(row.values.fqn))?.fqn ?? String(row.values.fqn)) : null));
  const data = { rows, columns: reportColumns(report, rows, payload.view?.columns.length), depth: depthAsked(payload.view) };
  const mounted = mountTable(container, { ...data, label: report.probe, empty: lines.totals[0] ?? "Nothing was measured." });
  container.append(reportNotes({ ...lines, totals: rows.length ? lines.totals : [] }, payload.reports.length === 1));
  return mounted;
}

function depthAsked(view) {
  return view?.all ? Infinity : (view?.depth ?? null);
}

/** The name of a row's module, or of its step. */
export function nameOf(values) {
  return "step" in values && !("fqn" in values) ? `step ${values.step}` : String(values.fqn ?? "") || "(model)";
}

/** Rows read as a tree if they are in the order in which modules were entered. */
function isTree(report, view) {
  const names = report.columns.map((column) => column.name);
  const first = names[0] === "fqn";
  return first && names.includes("call") && !names.includes("kind") && (report.grouping ?? "nested") === "nested" && !view?.sort;
}

/** Rows in a tree: the parent of each is the latest row before it of a module that contains its own. */
export function nestedRows(all) {
  const latest = new Map();
  return all.map((values) => {
    const fqn = String(values.fqn ?? "");
    const parent = fqn ? (ancestors(fqn).slice(1).map((name) => latest.get(name)).find(Boolean) ?? null) : null;
    const name = parent?.values.fqn ? relativeName(fqn, String(parent.values.fqn)) : nameOf(values);
    const row = { values, parent, name };
    if (!values.path || !latest.has(fqn)) latest.set(fqn, row);
    return row;
  });
}

/** Mount the table of modules, which joins all reports on them. */
export function mountModules(container, { payload, model }) {
  const made = new Map();
  const rows = model.modules.map((module) => {
    const row = { values: { type: module.type }, module, fqn: module.fqn, name: module.name, parent: made.get(module.parent) ?? null };
    made.set(module, row);
    return row;
  });
  const columns = moduleColumns(model, linked(rows));
  return mountTable(container, { label: "Modules", rows, columns, depth: depthAsked(payload.view), empty: "No module was measured." });
}

/** Mount the table of parameters. */
export function mountParameters(container, { model }) {
  const rows = model.parameters.map((parameter) => {
    const type = [...parameter.values, ...parameter.gradients].find((row) => row.type)?.type ?? parameter.module?.type;
    return { values: { type }, parameter, fqn: parameter.module?.fqn ?? "", name: parameter.fqn, parent: null };
  });
  return mountTable(container, { label: "Parameters", rows: linked(rows), columns: parameterColumns(model, rows), depth: null, empty: "No parameter was measured." });
}
