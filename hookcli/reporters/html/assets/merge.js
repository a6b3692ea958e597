// Merges rows of one place into one, by the rules of their columns: exactly, never an average of averages.

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
  return { [name]: merge === "first" || distinct.length === 1 ? values[0] : null, ...shapes };
}

/** The statistics of the concatenation of several tensors, by Chan, Golub and LeVeque (1983); null without any. */
export function merged(rows) {
  const measured = rows.filter((row) => num(row.numel) !== null && "l2" in row);
  if (measured.length < 2) return measured[0] ?? null;
  const total = { merged: measured.length };
  for (const key of ["numel", "zeros", "nan", "inf"]) total[key] = measured.reduce((sum, row) => sum + (row[key] ?? 0), 0);
  const solid = measured.map((row) => ({ n: row.numel - (row.nan ?? 0) - (row.inf ?? 0), row })).filter(({ n }) => n > 0);
  const each = (key) => solid.map(({ row }) => num(row[key]) ?? NaN);
  if (!solid.length) return { ...total, mean: NaN, std: NaN, min: NaN, max: NaN, l2: total.numel ? NaN : 0 };
  const n = solid.reduce((sum, part) => sum + part.n, 0);
  const mean = each("mean").reduce((sum, x, i) => sum + (x * solid[i].n) / n, 0);
  const squares = each("mean").reduce((sum, x, i) => {
    const own = solid[i].n > 1 ? num(solid[i].row.std) ** 2 * (solid[i].n - 1) : 0;
    return sum + own + solid[i].n * (x - mean) ** 2;
  }, 0);
  const std = n > 1 ? Math.sqrt(squares / (n - 1)) : NaN;
  return { ...total, mean, std, min: Math.min(...each("min")), max: Math.max(...each("max")), l2: Math.hypot(...each("l2")) };
}

/** The figure of one statistic over several rows of a module; null where there is none. */
export function figureOf(rows, key) {
  return num(merged(rows)?.[key]);
}
