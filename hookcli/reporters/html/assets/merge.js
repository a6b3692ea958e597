// Merges rows of one place into one, by the rules of their columns: exactly, never an average of averages.

import { declared, isStatistic } from "./declared.js";
import { num } from "./format.js";

/** The rules for numbers, as in hookcli/table/merge.py. */
export const RULES = {
  sum: (values) => values.reduce((total, value) => total + value, 0),
  once: ([value]) => value,
  norm: (values) => Math.hypot(...values),
  least: (values) => Math.min(...values),
  most: (values) => Math.max(...values),
};

/**
 * One row for the calls of a module: statistics are those of the concatenated tensors, and calls are counted.
 * @returns {Row|null} null without rows
 */
export function mergedRow(rows, columns) {
  if (!rows.length) return null;
  const values = columns.map((column) => mergedValue(rows, column));
  return { ...rows[0], ...Object.assign({}, ...values), ...merged(rows), calls: new Set(rows.map((row) => row.call)).size };
}

function mergedValue(rows, { name, merge, kind }) {
  const values = rows.map((row) => row[name] ?? null).filter((value) => value !== null);
  const numbers = values.map(num);
  if (values.length && Object.hasOwn(RULES, merge) && !numbers.includes(null)) return { [name]: RULES[merge](numbers) };
  const distinct = [...new Map(values.map((value) => [JSON.stringify(value), value])).values()];
  const shapes = kind === "shape" && distinct.length > 1 ? { [`${name}s`]: distinct } : {};
  return { [name]: ["first", "listed"].includes(merge) || distinct.length === 1 ? values[0] : null, ...shapes };
}

/** The statistics of the concatenation of several tensors, by Chan, Golub and LeVeque (1983); null without any. */
export function merged(rows) {
  const measured = rows.filter((row) => num(row.numel) !== null && "l2" in row);
  if (measured.length < 2) return measured[0] ?? null;
  const solid = measured.filter((row) => finiteOf(row) > 0);
  const empty = measured.every((row) => row.numel === 0);
  const values = Object.keys(measured[0]).map(declared).filter(isStatistic).map(({ name, merge }) => {
    const counts = merge === "sum";
    const parts = (counts ? measured : solid).map((row) => num(row[name]) ?? (counts ? 0 : NaN));
    return [name, merge in RULES && (parts.length || (empty && merge === "norm")) ? RULES[merge](parts) : NaN];
  });
  return { ...Object.fromEntries(values), merged: measured.length, ...meanAndStd(solid) };
}

function meanAndStd(rows) {
  const sizes = rows.map(finiteOf);
  const n = RULES.sum(sizes);
  const mean = RULES.sum(rows.map((row, i) => ((num(row.mean) ?? NaN) * sizes[i]) / n));
  const within = rows.map((row, i) => (sizes[i] > 1 ? num(row.std) ** 2 * (sizes[i] - 1) : 0) + sizes[i] * (num(row.mean) - mean) ** 2);
  return { mean: n ? mean : NaN, std: n > 1 ? Math.sqrt(RULES.sum(within) / (n - 1)) : NaN };
}

/** The number of a row's finite elements. */
export function finiteOf(row) {
  return row.numel - (row.nan ?? 0) - (row.inf ?? 0);
}

/** The figure of one statistic over several rows of a module; null where there is none. */
export function figureOf(rows, key) {
  return num(merged(rows)?.[key]);
}
