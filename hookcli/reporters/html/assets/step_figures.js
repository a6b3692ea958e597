// The text of a record's figures, by their units, as the terminal's tables have them.

import { bytes, count, fixed, microseconds, number, seconds } from "./format.js";

/**
 * The text of a figure of a statistic or of a model.
 * @param {{name: string, unit: string|null}} declared
 * @param {number|null} value
 * @returns {string}
 */
export function stepFigure({ name, unit }, value) {
  if (value === null || value === undefined) return "-";
  if (Number.isNaN(value)) return name === "loss" ? "NaN" : "-";
  if (unit === "seconds") return seconds(value);
  if (unit === "microseconds") return microseconds(value);
  if (unit === "bytes") return bytes(value);
  if (unit === "elements") return count(value);
  if (unit === "share") return value === 0 ? "0" : value === 1 ? "100%" : `${fixed(Math.min(Math.max(100 * value, 0.1), 99.9), 1)}%`;
  return number(value);
}
