// The boxes of the forward picture: calls in the order of execution, inside the modules that made them.

import { ancestors, inTree } from "./names.js";

const MOST_PARTS = 60; // a container with more shows them in runs
const RUN_LENGTH = 40;

/**
 * @typedef {Object} FlowBox a call, a module that holds calls, or a run of calls
 * @property {string} key no other box has it
 * @property {"call"|"module"|"run"} kind
 * @property {string} fqn the module, or for functions and runs the one around them
 * @property {string} place the module or operator that it stands for, as other reports name it; of a function without rows, the module
 * @property {Row|null} row of a call
 * @property {FlowBox|null} parent
 * @property {FlowBox[]} parts
 * @property {number} size how many calls are inside
 *
 * @typedef {{from: FlowBox, to: FlowBox, shape: number[]|null}} FlowEdge
 *
 * @typedef {Object} FlowTree
 * @property {FlowBox} root the model itself, which is not drawn
 * @property {FlowBox[]} calls in the order of execution
 * @property {FlowEdge[]} edges
 * @property {Map<string, FlowBox[]>} byFqn the boxes of a module or operator, of which there may be one for each call
 */

/**
 * Arrange the rows of a report "flow" in boxes.
 *
 * A module is a box as long as its calls follow each other; called again later, it is another box. So no edge leads
 * back. Modules that are never called, such as ModuleList, are not boxes, as they are not rows of the table.
 */
export function flowTree(report, model) {
  const root = newBox("", "module", "", null);
  const isBox = containersOf(model);
  const boxOf = new Map();
  let stack = [root];
  for (const row of relevant(report.rows)) {
    const around = ancestors(row.fqn).reverse().filter((fqn) => fqn && (fqn !== row.fqn || row.kind === "function") && isBox(fqn));
    stack = openBoxes(stack, around, row.id);
    const parent = stack[stack.length - 1];
    const box = newBox(`${row.id}`, "call", row.fqn, parent);
    const operator = row.kind === "function" ? `${row.fqn}:${row.type}_${row.number}` : null; // as other reports name it
    Object.assign(box, { row, size: 1, place: model.byFqn.has(operator) ? operator : row.fqn });
    boxOf.set(row.id, box);
    stack.forEach((each) => (each.size += 1));
  }
  [root, ...boxesIn(root)].forEach(inRuns);
  const calls = [...boxOf.values()];
  const edges = calls.flatMap((to) => to.row.inputs.map((id, i) => ({ from: boxOf.get(id), to, shape: to.row.input_shape?.[i] ?? null })));
  return { root, calls, edges: edges.filter(({ from }) => from), byFqn: byName(root) };
}

/** True for the call of a module, or of an operator that other reports have rows for. */
export function isOwnPlace(box) {
  return box.row?.kind === "module" || box.place !== box.fqn;
}

function newBox(key, kind, fqn, parent) {
  const box = { key, kind, fqn, place: fqn, row: null, parent, parts: [], size: 0 };
  parent?.parts.push(box);
  return box;
}

/** The calls that the picture shows: not functions whose result nothing uses. */
function relevant(rows) {
  const used = new Set();
  for (const row of [...rows].reverse()) {
    if (row.kind !== "function" || used.has(row.id)) [row.id, ...row.inputs].forEach((id) => used.add(id));
  }
  return rows.filter((row) => used.has(row.id));
}

/** Whether a module was called, so that it is a box; where no report tells that, each is. */
function containersOf(model) {
  const called = (module) => module && (module.shapes.length || module.activations.length || module.inputs.length) > 0;
  const known = model.modules.some(called);
  return (fqn) => !known || called(model.byFqn.get(fqn));
}

/** The stack of open boxes, changed so that it holds a box for each of these modules. */
function openBoxes(stack, around, id) {
  let same = 0;
  while (same < around.length && stack[same + 1]?.fqn === around[same]) same += 1;
  const kept = stack.slice(0, same + 1);
  for (const fqn of around.slice(same)) kept.push(newBox(`m${id}-${kept.length}`, "module", fqn, kept[kept.length - 1]));
  return kept;
}

/** All boxes inside a box, each before its parts. */
export function boxesIn(box) {
  return inTree(box.parts, ({ parts }) => parts);
}

/** Put the parts of a box with very many of them into runs. */
function inRuns(box) {
  while (box.parts.length > MOST_PARTS) {
    const parts = box.parts;
    box.parts = [];
    for (let i = 0; i < parts.length; i += RUN_LENGTH) {
      const run = newBox(`r${parts[i].key}-${i}-${parts.length}`, "run", box.fqn, box);
      run.parts = parts.slice(i, i + RUN_LENGTH);
      run.parts.forEach((part) => (part.parent = run));
      run.size = run.parts.reduce((sum, part) => sum + part.size, 0);
    }
  }
}

function byName(root) {
  const found = new Map();
  for (const box of boxesIn(root)) {
    if (box.kind === "module" || isOwnPlace(box)) found.set(box.place, [...(found.get(box.place) ?? []), box]);
  }
  return found;
}

/**
 * The boxes to open so that about `most` are drawn, level by level, as the table unfolds.
 * @param {boolean} whole open a level as a whole or not at all; else as many of its boxes as fit
 * @returns {{open: Set<string>, all: boolean}} `all`: nothing is left folded
 */
export function openedTo(root, most, whole) {
  const open = new Set();
  let level = [root];
  let [drawn, all] = [0, true];
  while (level.length) {
    const parts = level.reduce((sum, box) => sum + box.parts.length, 0);
    if (whole && drawn && drawn + parts > most) return { open, all: false };
    const opened = [];
    for (const box of level) {
      if (drawn && drawn + box.parts.length > most) continue;
      drawn += box.parts.length;
      opened.push(box);
      open.add(box.key);
    }
    all &&= opened.length === level.length;
    level = opened.flatMap((box) => box.parts).filter((box) => box.parts.length);
  }
  return { open, all };
}
