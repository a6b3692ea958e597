// The figures of a row of the heat map: a module's own, or those of a folded container with all its parts.

import { ABSENT } from "./matrix.js";
import { RULES } from "./merge.js";

/**
 * @typedef {Object} HeatRow
 * @property {Float64Array} values a figure per step
 * @property {Uint8Array} bad 1 where the module, or a part of it if it is folded, had values that are not finite
 */

/** A reader of rows for a statistic of a track. */
export async function rowReader(track, statistic) {
  const width = track.steps.length;
  const matrices = {};
  for (const name of statistic.merge === "ratio" ? [statistic.name, "update", "weight"] : [statistic.name]) matrices[name] = await track.matrix(name);
  const bad = await track.nonFinite(statistic.about);
  const slice = (matrix, node) => (node.row < 0 ? new Float64Array(width).fill(ABSENT) : matrix.subarray(node.row * width, (node.row + 1) * width));
  const known = new Map();
  const read = (node, folded) => {
    const parts = folded && node.children.length ? [...partsWithin(node)] : [node];
    const values = parts.length > 1 ? figuresTogether(parts, statistic, matrices, slice) : slice(matrices[statistic.name], node);
    const marks = new Uint8Array(width);
    for (const part of parts.filter((one) => one.row >= 0)) {
      for (let i = 0; i < width; i++) marks[i] |= bad[part.row * width + i];
    }
    return { values, bad: marks };
  };
  return (node, folded) => {
    const key = `${folded}${node.key}`;
    if (!known.has(key)) known.set(key, read(node, folded));
    return known.get(key);
  };
}

function* partsWithin(node) {
  yield node;
  for (const child of node.children) yield* partsWithin(child);
}

function figuresTogether(parts, statistic, matrices, slice) {
  const of = (name, rule) => reducedBy(parts.map((part) => slice(matrices[name], part)), RULES[rule]);
  if (!statistic.of_parts) return slice(matrices[statistic.name], parts[0]);
  if (statistic.merge !== "ratio") return of(statistic.name, statistic.merge);
  const [update, weight] = [of("update", "norm"), of("weight", "norm")];
  return update.map((value, i) => (value === ABSENT || weight[i] === ABSENT ? ABSENT : value / weight[i]));
}

function reducedBy(rows, rule) {
  return rows[0].map((_, i) => {
    const figures = rows.map((row) => row[i]).filter((value) => value !== ABSENT);
    return figures.length ? rule(figures) : ABSENT;
  });
}
