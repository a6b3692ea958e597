// Draws a table: the header, and of the rows those that are in sight.

import { h } from "./dom.js";
import { count, counted } from "./format.js";
import { SHOWN } from "./data.js";
import { isFolded } from "./table_state.js";

export const ROW_HEIGHT = 24;
const SAMPLE = 400; // rows whose texts set a column's width
const WIDEST = [80, 56, 40, 32, 24, 18]; // characters of words, as there is room
const NAME = 28; // characters of a name that always have room
const CHARACTER = 7.3; // pixels
const PADDING = 12;
const HEADING = 0.85; // of a character, in a smaller font

/**
 * Widths of columns as a grid template: the longest text of a sample of rows, cut where there is no room for all.
 * @param {{first: number, room: number}} space width of the first column if a person set it, and of the table, in pixels
 */
export function gridTemplate(columns, state, { first, room }) {
  const lengths = lengthsOf(columns, state);
  const found = WIDEST.map((most) => cut(columns, lengths, most)).find((widths) => pixels(widths) <= room) ?? cut(columns, lengths, WIDEST.at(-1));
  if (room) found[0] += Math.max(0, Math.min(lengths[0] - found[0], Math.floor((room - pixels(found)) / CHARACTER))); // what others leave
  const widths = found.map((width, i) => (i === 0 && first ? `${first}px` : `calc(${width}ch + ${PADDING}px)`));
  return [...widths, "minmax(0, 1fr)"].join(" ");
}

/** The columns without those that have no room, even if words are cut: as in the terminal, the lowest `drop` leaves first. */
export function fitting(columns, state, { first, room }) {
  const lengths = new Map(lengthsOf(columns, state).map((length, i) => [columns[i], length]));
  const leaving = columns.filter(({ drop }, i) => i && (drop ?? null) !== null).sort((a, b) => a.drop - b.drop);
  const needs = (shown) => {
    const [name, ...others] = cut(shown, shown.map((column) => lengths.get(column)), WIDEST.at(-1));
    return (first || pixels([name])) + pixels(others);
  };
  let shown = columns;
  for (const one of leaving) if (needs(shown) > room) shown = shown.filter((column) => ofBothSides(column) !== ofBothSides(one));
  return shown;
}

/** A column's name without the side of a comparison: its figures leave together. */
function ofBothSides({ key }) {
  return key.replace(/^[ab]_/, "");
}

function lengthsOf(columns, state) {
  const step = Math.max(1, Math.floor(state.rows.length / SAMPLE));
  const sample = state.rows.filter((_, i) => i % step === 0);
  return columns.map((column, i) => longestText(column, sample, i === 0 && state.mode === "tree" ? state : null, i === 0));
}

function cut(columns, lengths, most) {
  const heading = (i) => (columns[i].group && columns[i].group !== columns[i - 1]?.group && columns[i].group !== columns[i + 1]?.group ? HEADING * columns[i].group.length : 0); // of one column
  return lengths.map((length, i) => (columns[i].numeric ? Math.max(length, heading(i)) : Math.min(length, Math.max(most, i ? (columns[i].least ?? 0) : NAME))));
}

function pixels(widths) {
  return widths.reduce((sum, width) => sum + width * CHARACTER + PADDING, 0);
}

function longestText(column, sample, state, first) {
  const lead = state ? (row) => Math.ceil(2.3 * row.level) + 3 + row.name.length + (row.children.length ? 4 + (isFolded(state, row) ? faultInside(row).length : 0) : 0) : (row) => column.text(row).length;
  const least = Math.max(column.title.length + 2, first && !column.numeric ? 18 : 4);
  const longest = sample.reduce((most, row) => Math.max(most, lead(row)), least);
  return longest + (first ? 2 : 0);
}

/** The header. `sort` is called with a column that was clicked. */
export function headerRow(columns, state, sort) {
  const grouped = columns.some((column) => column.group);
  const cells = columns.map((column, i) => {
    const by = state.sort?.column.key === column.key ? (state.sort.descending ? "descending" : "ascending") : "none";
    const group = column.group && column.group !== columns[i - 1]?.group ? column.group : "";
    const hint = [column.group, column.title, column.hint && column.hint !== column.title ? `(${column.hint})` : ""].filter(Boolean).join(" ");
    const title = h("button", { type: "button", tabindex: -1, title: `Sort by ${hint}`, "data-key": column.key, on: { click: () => sort(column) } }, h("span", {}, column.title));
    const kind = `${column.numeric ? "number" : "words"}${group ? " begins" : ""}`;
    return h("div", { role: "columnheader", class: kind, "aria-sort": by, "aria-label": hint }, grouped ? h("span", { class: "group" }, group) : null, title, i ? null : h("span", { class: "edge" }));
  });
  return h("div", { class: "table-head", role: "row", "aria-rowindex": 1 }, cells);
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

/** The worst fault of the rows inside of a row: ▲ mlp.act all zero, and 2 more; "" without any. */
function faultInside({ values }) {
  return values[SHOWN]?.inside ?? "";
}

function nameCell(row, column, tree, folds, folded) {
  const text = tree ? row.name : column.text(row);
  const hidden = folded ? h("span", { class: "hidden-rows", title: `${counted(row.inside, "row")} folded` }, `+${count(row.inside)}`) : null;
  const fault = folded && faultInside(row) ? h("span", { class: "fault-inside", title: faultInside(row) }, faultInside(row)) : null;
  const fold = tree ? h("span", { class: "fold", "aria-hidden": "true", "data-fold": folds }, folds ? (folded ? "▸" : "▾") : "") : null;
  const attributes = { role: "rowheader", class: `name ${column.numeric ? "number" : ""} ${column.tone(row)}`, style: { "--level": tree ? row.level : 0 } };
  return h("div", attributes, fold, h("span", { class: "text" }, text), hidden, fault, lamp(row, folded));
}

/** A dot at rows with findings, in the colour of the worst; a folded row's stands for all within it. */
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
  const share = column.share?.(row) ?? null;
  const classes = [column.numeric ? "number" : "words", share !== null && column.look, column.tone(row), begins && "begins"].filter(Boolean);
  const style = share === null ? null : { "--share": share.toFixed(4) };
  return h("div", { role: "gridcell", class: classes.join(" "), style }, h("span", { class: "text" }, column.text(row)));
}
