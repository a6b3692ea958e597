// The declarations of columns, which the page's data carry: how each is titled, written, merged and shown.

/**
 * @typedef {Object} Column as `Column` in hookcli/table/column.py; fields that are absent there are as in USUAL
 * @property {string} name
 * @property {string} title
 * @property {string|null} unit
 * @property {string} kind of its values
 * @property {string} merge the rule for several rows that become one
 * @property {string} shown when a table has it
 * @property {string[]} aside views that show it only if asked to
 */
const USUAL = { unit: null, kind: "any", merge: "same", identity: false, charted: true, shown: "filled", bar: "", aside: [], about: "", of_parts: false, full: "", judged: false, drop: null };
let declarations = new Map();

/** Take the declarations of a payload; a growing record sends them again. */
export function declare(columns) {
  declarations = new Map(Object.entries(columns).map(([name, column]) => [name, { ...USUAL, name, ...column }]));
}

/** The column of this name. */
export function declared(name) {
  return declarations.get(name) ?? { ...USUAL, name, title: name };
}

/** The columns of reports, each once, in their order and with their titles. */
export function columnsOf(reports) {
  const columns = reports.flatMap((report) => report.columns.map((column) => ({ ...declared(column.name), ...column })));
  return [...new Map(columns.toReversed().map((column) => [column.name, column])).values()].reverse();
}

/** True for the statistics of a tensor, and its number of elements. */
export function isStatistic({ about, unit }) {
  return about === "output" || unit === "elements";
}

/** The number of a row's finite elements. */
export function finiteOf(row) {
  return row.numel - (row.nan ?? 0) - (row.inf ?? 0);
}

/** The title within a sentence: "mean", but "L2" and "NaN". */
export function spoken({ title, full, shown, about }) {
  const text = about === "output" ? title : full || title;
  return shown === "mark" || /^[A-Z][A-Z\d]/.test(text) ? text : text.slice(0, 1).toLowerCase() + text.slice(1);
}
