// The rows that a table shows: folded, sorted, searched. Free of the DOM.

import { searchTest, sortOrder } from "./filter.js";

const OPEN_ROWS = 40; // a tree opens as deep as about a screen shows

/**
 * @typedef {Object} TableState
 * @property {TableRow[]} visible the rows in the order in which they are shown
 * @property {Set<TableRow>} found the rows that the search found; null without a search
 * @property {TableRow[]} rows all of them
 * @property {"tree"|"list"|"leaves"} mode
 * @property {{column: TableColumn, descending: boolean}|null} sort
 */

/** Rows in a tree, from rows that name their parent; each gets its children, its level and the number of rows inside. */
export function linked(rows) {
  rows.forEach((row, id) => Object.assign(row, { id, children: [], level: row.parent ? row.parent.level + 1 : 0 }));
  rows.forEach((row) => row.parent?.children.push(row));
  rows.forEach((row) => (row.inside = 0));
  for (const row of [...rows].reverse()) if (row.parent) row.parent.inside += row.inside + 1;
  return rows;
}

/**
 * The state of a table.
 * @param {TableRow[]} rows in the order of a tree, linked
 * @param {number|null} depth to which a tree is open; null for as deep as a screen shows
 */
export function tableState(rows, columns, depth) {
  const nested = rows.some((row) => row.parent);
  const folded = new Set();
  const state = { rows, columns, nested, mode: nested ? "tree" : "list", sort: null, search: "", type: "", visible: [], found: null, folded, foldedInSearch: new Set() };
  openTo(state, depth ?? fittingDepth(rows));
  refresh(state);
  return state;
}

function fittingDepth(rows) {
  const depths = [...new Set(rows.map((row) => row.level))].sort((a, b) => b - a);
  return depths.find((depth) => rows.filter((row) => row.level <= depth).length <= OPEN_ROWS) ?? Math.min(1, depths[0] ?? 0);
}

/** Fold every row at this level and below it. */
export function openTo(state, depth) {
  state.folded.clear();
  state.rows.filter((row) => row.children.length && row.level >= depth).forEach((row) => state.folded.add(row));
}

/** Compute the visible rows anew. */
export function refresh(state) {
  const words = searchTest(state.search, state.columns);
  const typed = state.type ? (row) => row.values.type === state.type : null;
  const test = words || typed ? (row) => (!words || words(row)) && (!typed || typed(row)) : null;
  state.found = test ? new Set(state.rows.filter(test)) : null;
  const order = state.sort && sortOrder(state.sort.column, state.sort.descending);
  state.visible = state.mode === "tree" ? treeRows(state, order) : listRows(state, order);
}

function listRows(state, order) {
  const kept = state.rows.filter((row) => (!state.found || state.found.has(row)) && (state.mode === "list" || !row.children.length));
  return order ? kept.sort(order) : kept;
}

function treeRows(state, order) {
  const kept = state.found && withAncestors(state.found);
  const visible = [];
  const visit = (rows) => {
    const siblings = kept ? rows.filter((row) => kept.has(row)) : rows;
    for (const row of order ? [...siblings].sort(order) : siblings) {
      visible.push(row);
      if (!isFolded(state, row)) visit(row.children);
    }
  };
  visit(state.rows.filter((row) => !row.parent));
  return visible;
}

function withAncestors(rows) {
  const kept = new Set();
  for (const row of rows) for (let each = row; each && !kept.has(each); each = each.parent) kept.add(each);
  return kept;
}

function foldedNow(state) {
  return state.found ? state.foldedInSearch : state.folded;
}

/** True if the row's parts are hidden. */
export function isFolded(state, row) {
  return foldedNow(state).has(row);
}

/** Fold or unfold a row. */
export function setFolded(state, row, folded) {
  if (folded) foldedNow(state).add(row);
  else foldedNow(state).delete(row);
  refresh(state);
}

/** Set what is searched; rows folded during the last search open again. */
export function setSearch(state, search, type) {
  state.foldedInSearch.clear();
  Object.assign(state, { search, type });
  refresh(state);
}

/** Make a row visible: unfold what holds it, and end a search that hides it. */
export function reveal(state, row) {
  if (state.found && !state.found.has(row)) setSearch(state, "", "");
  if (state.mode === "leaves" && row.children.length) state.mode = "tree";
  for (let each = row.parent; each; each = each.parent) foldedNow(state).delete(each);
  refresh(state);
  return state.visible.indexOf(row);
}
