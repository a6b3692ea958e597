// The places of a model in the order in which its outputs were made, with their statistics, for charts over depth.
import { declared, finiteOf, isStatistic } from "./declared.js";
import { num } from "./format.js";
import { ancestors, isWithin } from "./names.js";

const FEWEST_PARTS = 4;

/**
 * @typedef {object} Point
 * @property {string} fqn
 * @property {string} name of the module, with its call and path where it has several
 * @property {string[]} fqns also of containers that returned the same tensor
 * @property {object} [activation] row of its output
 * @property {object} [grad] row of its output's gradient
 * @property {object[]} parameters rows of its parameters' gradients
 */

/**
 * The points of a model. A container comes after its parts, and only if it returned another tensor than the last of them.
 * @param {Model} model from joinReports
 */
export function depthPoints(model) {
  const rows = model.modules.flatMap((module) => module.activations.map((row) => ({ module, row })));
  const shown = [];
  for (const point of rows.length ? outputsInOrder(rows) : gradientsInOrder(model)) {
    const before = shown[shown.length - 1];
    if (before && isSameTensor(before, point)) before.fqns.push(point.fqn);
    else shown.push(point);
  }
  return shown;
}

function outputsInOrder(rows) {
  const sorted = [...rows].sort((a, b) => (a.row.index ?? 0) - (b.row.index ?? 0));
  return leavesFirst(sorted).map(({ module, row }) => {
    const place = ({ call, path, rank }) => `${call || 0} ${path || ""} ${rank || 0}`;
    const grad = module.outputGrads.find((other) => place(other) === place(row));
    return depthPoint(module.fqn, row, { activation: row, grad, parameters: row.call ? [] : gradientsOf(module) });
  });
}

/** Without activations: gradients arrive from the last output, or parameter, to the first. */
function gradientsInOrder(model) {
  const outputs = model.modules.flatMap((module) => module.outputGrads.map((row) => ({ module, row })));
  const last = (a, b) => (b.row.index ?? 0) - (a.row.index ?? 0);
  if (outputs.length) {
    const points = outputs.sort(last).map(({ module, row }) => ({ module, row, parameters: row.call ? [] : gradientsOf(module) }));
    return points.map(({ module, row, parameters }) => depthPoint(module.fqn, row, { grad: row, parameters }));
  }
  const own = model.parameters.flatMap(({ fqn, gradients }) => gradients.slice(0, 1).map((row) => ({ fqn, row })));
  return own.sort(last).map(({ fqn, row }) => depthPoint(fqn, row, { parameters: [row] }));
}

function gradientsOf(module) {
  return module.parameters.flatMap(({ gradients }) => gradients.slice(0, 1));
}

function depthPoint(fqn, row, figures) {
  const said = ["call", "rank"].filter((key) => row[key]).map((key) => ` ${key} ${row[key]}`);
  return { fqn, name: `${fqn || "(model)"}${row.path || ""}${said.join("")}`, fqns: [fqn], ...figures };
}

/** Rows come in the order in which modules were entered; they leave in the order of their outputs. */
export function leavesFirst(entered) {
  const [left, open] = [[], []];
  for (const item of entered) {
    while (open.length && !isWithin(item.module.fqn, open[open.length - 1].module.fqn)) left.push(open.pop());
    open.push(item);
  }
  return [...left, ...open.reverse()];
}

function isSameTensor({ activation: a, fqn }, { activation: b, fqn: container }) {
  if (!a || !b || !isWithin(fqn, container)) return false;
  return String(a.shape) === String(b.shape) && Object.keys(a).every((key) => a[key] === b[key] || !isStatistic(declared(key)));
}

/** Root mean square of a row's finite elements; null without any. */
export function rmsOf(row) {
  const finite = row ? finiteOf(row) : 0;
  return finite > 0 ? num(row.l2) / Math.sqrt(finite) : badOf(row);
}

/** A figure of a row; NaN or infinite if elements are and none is finite; null without a row. */
export function statisticOf(row, key) {
  return row && Number.isFinite(num(row[key])) ? num(row[key]) : badOf(row);
}

/** What stands in for a figure over no finite element: the kind of the elements. */
function badOf(row) {
  if (!row || !(row.nan || row.inf)) return null;
  return row.nan ? NaN : Infinity;
}

/** The L2 norm of all of a module's own parameters' gradients; null without any. */
export function normOf(rows) {
  const norms = rows.map((row) => statisticOf(row, "l2")).filter((norm) => norm !== null);
  return norms.length ? Math.hypot(...norms) : null;
}

/** Marks of the axis where the parts of the model begin, at the first level at which no part has more than half of it. */
export function depthTicks(points) {
  const deepest = Math.max(1, ...points.map(({ fqn }) => ancestors(fqn).length - 1));
  const levels = Array.from({ length: deepest }, (_, i) => partsAt(points, i + 1));
  const isEven = (parts) => parts.every(({ size }) => size <= Math.max(points.length / 2, 1));
  const chosen = levels.find((parts) => parts.length >= FEWEST_PARTS && isEven(parts)) ?? levels[0];
  return chosen.map(({ x, name }) => {
    const [last, before] = name.split(".").reverse();
    return { x, text: before !== undefined && /^\d+$/.test(last) ? `${before}.${last}` : last || "(model)" }; // "layers.3", not "3"
  });
}

/** Runs of points with the same name down to a level: where each begins, and how many points it has. */
function partsAt(points, level) {
  const parts = [];
  points.forEach(({ fqn }, x) => {
    const name = ancestors(fqn).at(-1 - level) ?? fqn;
    const last = parts[parts.length - 1];
    if (last?.name === name) last.size += 1;
    else parts.push({ name, x, size: 1 });
  });
  return parts;
}
