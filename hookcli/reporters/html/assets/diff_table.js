// The table of one kind of a comparison's rows, coloured by how far both sides agree.

import { ancestors, relativeName } from "./names.js";
import { reportColumns } from "./columns.js";
import { num } from "./format.js";
import { mountTable } from "./table.js";
import { linked } from "./table_state.js";
import { agreement } from "./diff_model.js";

/**
 * Mount the table of a part.
 * @param {HTMLElement} container
 * @param {Part} part
 */
export function mountDiffPart(container, part) {
  const rows = linked(part.kind === "output" || part.kind === "" ? tree(part.rows) : part.rows.map((values) => ({ values, parent: null, name: placeName(values) })));
  rows.forEach((row) => (row.fqn = "fqn" in row.values ? row.values.fqn : null));
  const columns = reportColumns({ ...part.diff, rows: part.rows }, rows, false).map((column) => styled(column, rows, part));
  return mountTable(container, { rows, columns, depth: null, label: part.title, empty: "Nothing was compared." });
}

function placeName(values) {
  return "fqn" in values ? values.fqn || "(model)" : `step ${values.step}`;
}

/** Rows under the latest row of the module that contains theirs. */
function tree(all) {
  const latest = new Map();
  return all.map((values) => {
    if (!values.fqn) {
      const top = { values, parent: null, name: placeName(values) };
      latest.set(values.fqn ?? "", top);
      return top;
    }
    const parent = ancestors(values.fqn).slice(1).map((name) => latest.get(name)).find(Boolean) ?? null;
    const name = parent?.values.fqn ? relativeName(values.fqn, parent.values.fqn) : values.fqn;
    const row = { values, parent, name };
    if (!latest.has(values.fqn) || !values.path) latest.set(values.fqn, row);
    return row;
  });
}

function styled(made, rows, part) {
  const { key, column, shown: usually, tone: usual } = made;
  const listed = part.diff.meta.of || part.diff.meta.a?.record; // of saved reports and records, `differs` says most
  const marked = ["change", "reset"].includes(key) && part.rows.some((row) => (row[key] ?? "") !== ""); // though no report lists them
  const shown = marked || (listed && key === "differs") || (usually && !column?.aside.includes("diff"));
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
