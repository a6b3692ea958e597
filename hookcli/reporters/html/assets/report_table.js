// Tables of one report, of the joined modules, of the parameters and of a comparison.

import { moduleColumns, parameterColumns, reportColumns } from "./columns.js";
import { SHOWN } from "./data.js";
import { num } from "./format.js";
import { relativeName } from "./names.js";
import { mountTable } from "./table.js";
import { linked, rowsOfTree } from "./table_state.js";
import { reportNotes } from "./verdict.js";

/** Mount the table of one report, in the order in which its command wrote it. */
export function mountReport(container, { payload, model }, report, lines) {
  const rows = rowsOf(report.rows, payload.view?.sort ? [] : report.rows, (fqn) => model.owner(fqn)?.fqn ?? fqn);
  const data = { rows, columns: reportColumns(report, rows, payload.view?.columns.length), depth: depthAsked(payload.view) };
  const mounted = mountTable(container, { ...data, label: report.probe, empty: lines.totals[0] ?? "Nothing was measured." });
  container.append(reportNotes({ ...lines, totals: rows.length ? lines.totals : [] }, payload.reports.length === 1));
  return mounted;
}

function depthAsked(view) {
  return view?.all ? Infinity : (view?.depth ?? null);
}

/** The rows of a table, as a tree if `parents` has the rows that they are parts of; `place` names the module that a row selects. */
function rowsOf(all, parents, place) {
  const nameOf = ({ step, fqn }) => (step !== undefined && fqn === undefined ? `step ${step}` : String(fqn ?? "") || "(model)");
  const rows = all.map((values) => ({ values, name: nameOf(values), fqn: "fqn" in values ? place(String(values.fqn)) : null }));
  const byValues = new Map(rows.map((row) => [row.values, row]));
  for (const row of rows) {
    row.parent = byValues.get(parents[row.values[SHOWN].parent]) ?? null;
    if (row.parent?.values.fqn) row.name = relativeName(String(row.values.fqn), String(row.parent.values.fqn));
  }
  return linked(rows);
}

/** Mount the table of modules, which joins all reports on them. */
export function mountModules(container, { payload, model }) {
  const rows = rowsOfTree(model.modules, (module) => ({ values: { type: module.type, [SHOWN]: module }, module, fqn: module.fqn, name: module.name }));
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
  const rows = rowsOf(part.rows, part.diff.rows, (fqn) => fqn);
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
  const tone = (row) => (column?.judged ? `diff-${row.values[SHOWN].agreement}` : usual(row));
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
