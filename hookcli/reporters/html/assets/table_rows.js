// Draws a table: the header, and of the rows those that are in sight.

import { h } from "./dom.js";
import { count, counted } from "./format.js";
import { isFolded } from "./table_state.js";

export const ROW_HEIGHT = 24;
const SPARE = 8; // rows beyond the edges
const SAMPLE = 400; // rows whose texts set a column's width
const WIDEST = { words: 24, number: 36, name: 44 }; // characters

/** Widths of columns as a grid template: the longest text of a sample of rows; `width` is that of the first by hand. */
export function gridTemplate(columns, rows, tree, width) {
  const step = Math.max(1, Math.floor(rows.length / SAMPLE));
  const sample = rows.filter((_, i) => i % step === 0);
  const widths = columns.map((column, i) => {
    const lead = i === 0 && tree ? (row) => Math.ceil(2.3 * row.level) + 3 + row.name.length : (row) => column.text(row).length;
    const longest = sample.reduce((most, row) => Math.max(most, lead(row)), column.title.length + 2);
    const look = column.look === "tick" ? 2 : 0;
    const most = WIDEST[i ? (column.numeric ? "number" : "words") : "name"];
    return i === 0 && width ? `${width}px` : `calc(${Math.min(Math.max(longest, i ? 4 : 18) + look, most)}ch + 16px)`;
  });
  return [...widths, "minmax(0, 1fr)"].join(" ");
}

/** The header. `sort` is called with a column that was clicked. */
export function headerRow(columns, state, sort) {
  const cells = columns.map((column, i) => {
    const by = state.sort?.column.key === column.key ? (state.sort.descending ? "descending" : "ascending") : "none";
    const group = column.group && column.group !== columns[i - 1]?.group ? column.group : "";
    const hint = [column.group, column.title, column.hint && column.hint !== column.title ? `(${column.hint})` : ""].filter(Boolean).join(" ");
    const title = h("button", { type: "button", tabindex: -1, title: `Sort by ${hint}`, "data-key": column.key, on: { click: () => sort(column) } }, h("span", {}, column.title));
    const kind = `${column.numeric ? "number" : "words"}${column.group && column.group !== columns[i - 1]?.group ? " begins" : ""}`;
    return h("div", { role: "columnheader", class: kind, "aria-sort": by, "aria-label": hint }, h("span", { class: "group" }, group), title, i ? null : h("span", { class: "edge" }));
  });
  return h("div", { class: "table-head", role: "row", "aria-rowindex": 1 }, cells);
}

/** The rows in sight of a scroller, from `first` to before `last`. */
export function inSight(scroller, total) {
  const first = Math.max(0, Math.floor(scroller.scrollTop / ROW_HEIGHT) - SPARE);
  return [first, Math.min(total, first + Math.ceil(scroller.clientHeight / ROW_HEIGHT) + 2 * SPARE)];
}

/** One row. */
export function bodyRow(row, index, columns, state, active) {
  const tree = state.mode === "tree";
  const folds = tree && row.children.length > 0;
  const classes = ["table-row", row === active && "selected", tree && state.found && !state.found.has(row) && "aside"];
  return h(
    "div",
    {
      class: classes.filter(Boolean).join(" "),
      role: "row",
      id: `${state.id}-${row.id}`,
      "data-fqn": row.fqn,
      "data-row": row.id,
      "aria-rowindex": index + 2,
      "aria-level": tree ? row.level + 1 : null,
      "aria-expanded": folds ? String(!isFolded(state, row)) : null,
      "aria-selected": String(row === active),
    },
    columns.map((column, i) => (i ? bodyCell(row, column, columns[i - 1]) : nameCell(row, column, tree, folds, isFolded(state, row)))),
  );
}

function nameCell(row, column, tree, folds, folded) {
  const text = tree ? row.name : column.text(row);
  const hidden = folded ? h("span", { class: "hidden-rows", title: `${counted(row.inside, "row")} folded` }, `+${count(row.inside)}`) : null;
  const fold = tree ? h("span", { class: "fold", "aria-hidden": "true", "data-fold": folds }, folds ? (folded ? "▸" : "▾") : "") : null;
  const cell = h("div", { role: "rowheader", class: "name" }, fold, h("span", { class: "text" }, text), hidden, lamp(row, folded));
  cell.style.setProperty("--level", tree ? row.level : 0);
  return cell;
}

/** A dot at rows with findings, in the colour of the worst; that of a folded row is for all within it. */
function lamp(row, folded) {
  const worst = row.module && worstOf(row.module, folded);
  return worst ? h("span", { class: `lamp ${worst}`, role: "img", "aria-label": worst, title: worst }) : null;
}

function worstOf(module, within) {
  const found = module.findings.map((finding) => finding.severity);
  const below = within ? module.children.map((child) => worstOf(child, true)) : [];
  return ["error", "warning", "info"].find((severity) => found.includes(severity) || below.includes(severity));
}

function bodyCell(row, column, before) {
  const begins = column.group && column.group !== before.group;
  const classes = [column.numeric ? "number" : "words", column.look, column.tone(row), begins && "begins"];
  const cell = h("div", { role: "gridcell", class: classes.filter(Boolean).join(" ") }, h("span", { class: "text" }, column.text(row)));
  const share = column.share?.(row) ?? null;
  if (share === null) cell.classList.remove("bar", "tick");
  else cell.style.setProperty("--share", share.toFixed(4));
  return cell;
}
