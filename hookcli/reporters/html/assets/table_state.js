// The rows that a table shows: folded, sorted, searched. Free of the DOM.

const OPEN_ROWS = 40; // a tree opens as deep as about a screen shows
const TERM = /"([^"]*)"|(\S+)/g;
const COMPARISON = /^([\w.%]+)(<=|>=|!=|=|<|>)(.*)$/;
const UNITS = { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12, ki: 2 ** 10, mi: 2 ** 20, gi: 2 ** 30, ti: 2 ** 40, kib: 2 ** 10, mib: 2 ** 20, gib: 2 ** 30, tib: 2 ** 40, "%": 0.01 };
const COLLATOR = new Intl.Collator("en", { numeric: true });
const COMPARE = {
  "<": (a, b) => a < b,
  ">": (a, b) => a > b,
  "<=": (a, b) => a <= b,
  ">=": (a, b) => a >= b,
  "=": (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b)),
  "!=": (a, b) => a !== b && !(Number.isNaN(a) && Number.isNaN(b)),
};

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

/** A linked row for each node of a tree, whose parents come before their parts. */
export function rowsOfTree(nodes, valuesOf) {
  const made = new Map();
  for (const node of nodes) made.set(node, { ...valuesOf(node), parent: made.get(node.parent) ?? null });
  return linked([...made.values()]);
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
  const kept = state.found && new Set(); // what was found, and what is around it
  for (const row of state.found ?? []) for (let each = row; each && !kept.has(each); each = each.parent) kept.add(each);
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

/** The test of a row that a search asks for, by words and comparisons such as macs>1M, type=Conv2d or act.std<0.1; null for an empty search. All terms must hold; a leading "-" excludes. */
function searchTest(text, columns) {
  const tests = [...text.matchAll(TERM)].map(([, quoted, word]) => (quoted === undefined ? termTest(word, columns) : wordTest(quoted, columns)));
  return tests.length ? (row) => tests.every((test) => test(row)) : null;
}

function termTest(term, columns) {
  if (term.startsWith("-") && term.length > 1 && !COMPARISON.test(term)) {
    const test = wordTest(term.slice(1), columns);
    return (row) => !test(row);
  }
  const [, name, operator, given] = COMPARISON.exec(term) ?? [];
  const column = name && columnNamed(name, columns);
  return column && given ? comparison(column, operator, given) : wordTest(term, columns);
}

/** A word is a part of a text of the row, in any case. */
function wordTest(word, columns) {
  const part = word.toLowerCase();
  return (row) => wordsOf(row, columns).includes(part);
}

const WORDS = new WeakMap();

/** All texts of a row in lower case. */
export function wordsOf(row, columns) {
  let words = WORDS.get(row);
  if (words === undefined) {
    const texts = columns.filter((column) => !column.numeric).map((column) => column.text(row));
    words = [row.fqn ?? "", ...texts].join("\n").toLowerCase();
    WORDS.set(row, words);
  }
  return words;
}

function columnNamed(name, columns) {
  const asked = name.toLowerCase();
  const plain = (text) => text.toLowerCase().replaceAll(" ", "_");
  const exact = columns.find((column) => column.key.toLowerCase() === asked || plain(column.title) === asked);
  return exact ?? columns.find((column) => column.key.toLowerCase().endsWith(`.${asked}`));
}

function comparison(column, operator, given) {
  const limit = numberGiven(given);
  const compare = COMPARE[operator];
  if (given === "-") return (row) => ((column.value(row) ?? null) === null) === (operator === "=");
  if (!column.numeric || limit === null) return (row) => compare(column.text(row).toLowerCase(), given.toLowerCase());
  return (row) => {
    const value = column.value(row) ?? null;
    return value !== null && compare(value, limit);
  };
}

/** A number as people type it: 1M, 12MiB, 5%, nan, -inf; null for anything else. */
function numberGiven(text) {
  const special = { nan: NaN, inf: Infinity, "-inf": -Infinity }[text.toLowerCase()];
  if (special !== undefined) return special;
  const [, digits, unit] = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z%]*)$/i.exec(text) ?? [];
  return digits !== undefined && UNITS[unit.toLowerCase()] !== undefined ? Number(digits) * UNITS[unit.toLowerCase()] : null;
}

/** The order of two rows by a column; rows without a value, and NaN, come last either way. */
function sortOrder(column, descending) {
  const missing = (value) => (value ?? null) === null || value === "" || Number.isNaN(value);
  const direction = descending ? -1 : 1;
  const known = [];
  const value = (row) => (known[row.id] ??= column.value(row));
  return (rowA, rowB) => {
    const [a, b] = [value(rowA), value(rowB)];
    if (missing(a) || missing(b)) return missing(a) - missing(b) || rowA.id - rowB.id;
    if (typeof a === "number" && typeof b === "number") return direction * (a < b ? -1 : a > b ? 1 : 0) || rowA.id - rowB.id;
    return direction * COLLATOR.compare(String(a), String(b)) || rowA.id - rowB.id;
  };
}
