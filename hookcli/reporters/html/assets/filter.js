// The search of a table: words, and comparisons such as macs>1M, type=Conv2d or act.std<0.1.

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

/** The test of a row that a search asks for; null for an empty search. All terms must hold; a leading "-" excludes. */
export function searchTest(text, columns) {
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
export function sortOrder(column, descending) {
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
