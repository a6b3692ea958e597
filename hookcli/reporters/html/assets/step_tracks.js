// The steps of a record as views read them: a track per model and phase, with its matrices and its tree of modules.

import { declared } from "./declared.js";
import { count } from "./format.js";
import { ABSENT, unpackCounts, unpackFigures } from "./data.js";
import { inTree } from "./names.js";

/**
 * @typedef {Object} StepNode a row of the tree of a track
 * @property {string} key
 * @property {string} fqn
 * @property {string} path of one of several tensors that the module returned
 * @property {string} name below its parent
 * @property {Object<string, any>|null} module what the record says of it; null for a container that never ran by itself
 * @property {number} row in the matrices; -1 for such a container
 * @property {number} level
 * @property {StepNode|null} parent
 * @property {StepNode[]} children
 */

/** The rules for numbers, by which the figures of a folded row become one, as in hookcli/table/merge.py. */
const RULES = {
  sum: (values) => values.reduce((total, value) => total + value, 0),
  once: ([value]) => value,
  norm: (values) => Math.hypot(...values),
  least: (values) => Math.min(...values),
  most: (values) => Math.max(...values),
};

/** One model in one phase. Matrices are unpacked when they are asked for, and stay. */
export class StepTrack {
  /** @param {Object<string, any>} data as in the payload */
  constructor(data) {
    this.model = data.model;
    this.phase = data.phase;
    this.chunks = [];
    this.known = new Map();
    this.bad = new Map();
    this.take(data);
  }

  /** Take in what a growing record has: figures as a whole, matrices of the steps since the last time. */
  take(data) {
    Object.assign(this, { ...data, statistics: undefined });
    this.chunks.push({ since: data.since, until: data.steps.length, places: data.modules.map(modulePlace), blocks: data.statistics });
    const blocks = new Map(this.chunks.flatMap((chunk) => chunk.blocks).map((block) => [block.name, block]));
    this.statistics = [...blocks.values()].map(({ name, counts }) => ({ ...declared(name), title: declared(name).full || declared(name).title, counts: Boolean(counts) }));
    this.rows = new Map(data.modules.map((module, row) => [modulePlace(module), row]));
    this.nodes = stepTree(data);
    this.byFqn = new Map(this.nodes.toReversed().map((node) => [node.fqn, node]));
    this.names = data.steps.map((_, index) => this.stepName(index));
    this.known.clear();
    this.bad.clear();
  }

  /** The matrix of a statistic, row by row in the order of `modules`; ABSENT where nothing was measured. */
  matrix(name) {
    if (!this.known.has(name)) this.known.set(name, this.#joined(name));
    return this.known.get(name);
  }

  async #joined(name) {
    const width = this.steps.length;
    const counted = this.statistics.find((one) => one.name === name).counts;
    const whole = new Float64Array(this.modules.length * width).fill(counted ? 0 : ABSENT);
    for (const chunk of this.chunks) {
      const block = chunk.blocks.find((one) => one.name === name);
      if (!block) continue;
      const part = await (block.counts ? unpackCounts(block.counts) : unpackFigures(block.figures));
      const columns = chunk.until - chunk.since;
      chunk.places.forEach((place, row) => whole.set(part.subarray(row * columns, (row + 1) * columns), this.rows.get(place) * width + chunk.since));
    }
    return whole;
  }

  /**
   * Where a module had values that are not finite: 1 per cell, in what the statistic is about. Counts above 0 tell of
   * them, and norms of parameters that are not finite themselves; no other figure does: the standard deviation of one
   * element is NaN, and so is 0 / 0 of an update.
   */
  nonFinite(about) {
    if (!this.bad.has(about)) this.bad.set(about, this.#marked(about));
    return this.bad.get(about);
  }

  async #marked(asked) {
    const found = new Uint8Array(this.modules.length * this.steps.length);
    const isOdd = (name) => this.chunks.some(({ blocks }) => blocks.some((block) => block.name === name && block.odd));
    const tells = ({ name, about, merge, counts }) => about === asked && (counts || (about === "parameters" && merge === "norm" && isOdd(name)));
    for (const { name, counts } of this.statistics.filter(tells)) {
      const isBad = counts ? (number) => number > 0 : (norm) => !Number.isFinite(norm);
      (await this.matrix(name)).forEach((value, i) => isBad(value) && (found[i] = 1));
    }
    return found;
  }

  /** The name of a step, for people: "step 30", of forwards without gradients "step 30, forward 2". */
  stepName(index) {
    const forward = this.forwards[index];
    const said = `step ${count(this.steps[index])}`;
    return forward === null || forward === undefined ? said : `${said}, forward ${forward}`;
  }
}

function modulePlace(module) {
  return `${module.fqn}\0${module.path}`;
}

/** The nodes of a tree, in the order of their rows, each before its parts. */
function stepTree({ nodes, modules }) {
  const made = nodes.map((node) => ({ ...node, module: modules[node.row] ?? null, children: [] }));
  for (const node of made) {
    node.parent = made[node.parent] ?? null;
    node.level = node.parent ? node.parent.level + 1 : 0;
    node.parent?.children.push(node);
  }
  return inTree(made.filter(({ parent }) => !parent));
}

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
    const parts = folded ? inTree([node]) : [node];
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

function figuresTogether(parts, statistic, matrices, slice) {
  const of = (name, rule) => {
    const rows = parts.map((part) => slice(matrices[name], part));
    return rows[0].map((_, i) => {
      const figures = rows.map((row) => row[i]).filter((value) => value !== ABSENT);
      return figures.length ? RULES[rule](figures) : ABSENT;
    });
  };
  if (!statistic.of_parts) return slice(matrices[statistic.name], parts[0]);
  if (statistic.merge !== "ratio") return of(statistic.name, statistic.merge);
  const [update, weight] = [of("update", "norm"), of("weight", "norm")];
  return update.map((value, i) => (value === ABSENT || weight[i] === ABSENT ? ABSENT : value / weight[i]));
}
