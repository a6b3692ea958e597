// Tables of one report, of the joined modules, of the parameters and of a comparison.

import { moduleColumns, parameterColumns, reportColumns } from "./columns.js";
import { agreement } from "./diff_model.js";
import { num } from "./format.js";
import { ancestors, relativeName } from "./names.js";
import { mountTable } from "./table.js";
import { linked, rowsOfTree } from "./table_state.js";
import { reportNotes } from "./verdict.js";

/** Mount the table of one report, in the order in which its command wrote it. */
export function mountReport(container, { payload, model }, report, lines) {
  const rows = rowsOf(report.rows, isTree(report, payload.view), (fqn) => model.owner(fqn)?.fqn ?? fqn);
  const data = { rows, columns: reportColumns(report, rows, payload.view?.columns.length), depth: depthAsked(payload.view) };
  const mounted = mountTable(container, { ...data, label: report.probe, empty: lines.totals[0] ?? "Nothing was measured." });
  container.append(reportNotes({ ...lines, totals: rows.length ? lines.totals : [] }, payload.reports.length === 1));
  return mounted;
}

function depthAsked(view) {
  return view?.all ? Infinity : (view?.depth ?? null);
}

/** The rows of a table, `nested` or side by side; `place` names the module that a row selects. */
function rowsOf(all, nested, place) {
  const rows = linked(nested ? nestedRows(all) : all.map((values) => ({ values, parent: null, name: nameOf(values) })));
  rows.forEach((row) => (row.fqn = "fqn" in row.values ? place(String(row.values.fqn)) : null));
  return rows;
}

/** The name of a row's module, or of its step. */
function nameOf(values) {
  return "step" in values && !("fqn" in values) ? `step ${values.step}` : String(values.fqn ?? "") || "(model)";
}

/** Rows read as a tree if they are in the order in which modules were entered. */
function isTree(report, view) {
  const names = report.columns.map((column) => column.name);
  const first = names[0] === "fqn";
  return first && names.includes("call") && !names.includes("kind") && (report.grouping ?? "nested") === "nested" && !view?.sort;
}

/** Rows in a tree: the parent of each is the latest row before it of a module that contains its own. */
function nestedRows(all) {
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
  const rows = rowsOfTree(model.modules, (module) => ({ values: { type: module.type }, module, fqn: module.fqn, name: module.name }));
  return mountTable(container, { label: "Modules", rows, columns: moduleColumns(model, rows), depth: depthAsked(payload.view), empty: "No module was measured." });
}

/** Mount the table of parameters. */
export function mountParameters(container, { model }) {
  const rows = model.parameters.map((parameter) => {
    const type = [...parameter.values, ...parameter.gradients].find((row) => row.type)?.type ?? parameter.module?.type;
    return { values: { type }, parameter, fqn: parameter.module?.fqn ?? "", name: parameter.fqn, parent: null };
  });
  return mountTable(container, { label: "Parameters", rows: linked(rows), columns: parameterColumns(model, rows), depth: null, empty: "No parameter was measured." });
}

/** Mount the table of one kind of a comparison's rows, coloured by how far both sides agree. */
export function mountDiffPart(container, part) {
  const rows = rowsOf(part.rows, part.kind === "output" || part.kind === "", (fqn) => fqn);
  const columns = reportColumns({ ...part.diff, rows: part.rows }, rows, false).map((column) => styled(column, rows, part));
  const remark = columns.findIndex(({ key }) => key === "mark"); // it says what changed, so that it stands beside the name
  if (remark > 0) columns.splice(1 + columns.findIndex(({ key }) => key === "type"), 0, ...columns.splice(remark, 1));
  return mountTable(container, { rows, columns, depth: null, label: part.title, empty: "Nothing was compared." });
}

function styled(made, rows, part) {
  const { key, column, shown: usually, tone: usual } = made;
  const listed = part.diff.meta.of || part.diff.meta.a?.record; // of saved reports and records, `differs` says most
  const repeated = ["change", "reset"].includes(key); // by the remark
  const shown = !repeated && ((listed && key === "differs") || (usually && !column?.aside.includes("diff")));
  const tone = (row) => (column?.judged ? `diff-${agreement(row.values)}` : usual(row));
  const scaled = key === "times" ? { look: "bar", share: logShare(rows) } : {};
  return { ...made, ...scaled, shown, tone };
}

/** The length of an excess's bar, by its logarithm: half of the cell is the tolerance. */
function logShare(rows) {
  const finite = rows.map((row) => num(row.values.times)).filter((value) => value > 0 && Number.isFinite(value));
  const decades = Math.max(1, ...finite.map((value) => Math.abs(Math.log10(value))));
  return (row) => {
    const value = num(row.values.times);
    if (!(value > 0)) return null;
    return Number.isFinite(value) ? Math.min(Math.max((1 + Math.log10(value) / decades) / 2, 0.02), 1) : 1;
  };
}
