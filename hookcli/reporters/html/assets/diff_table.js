// The table of one kind of a comparison's rows, coloured by how far both sides agree.

import { reportColumns } from "./columns.js";
import { num } from "./format.js";
import { nameOf, nestedRows } from "./report_table.js";
import { mountTable } from "./table.js";
import { linked } from "./table_state.js";
import { agreement } from "./diff_model.js";

/** Mount the table of a part. */
export function mountDiffPart(container, part) {
  const rows = linked(part.kind === "output" || part.kind === "" ? nestedRows(part.rows) : part.rows.map((values) => ({ values, parent: null, name: nameOf(values) })));
  rows.forEach((row) => (row.fqn = "fqn" in row.values ? row.values.fqn : null));
  const columns = reportColumns({ ...part.diff, rows: part.rows }, rows, false).map((column) => styled(column, rows, part));
  return mountTable(container, { rows, columns, depth: null, label: part.title, empty: "Nothing was compared." });
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
