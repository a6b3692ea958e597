// The table of a record's modules at the chosen step, read from the matrices.

import { wordColumn } from "./columns.js";
import { declared } from "./declared.js";
import { figureText, shape } from "./format.js";
import { ABSENT } from "./data.js";
import { heatScale } from "./heat_colors.js";
import { mountTable } from "./table.js";
import { rowsOfTree } from "./table_state.js";

const GROUPS = { output: "Output", gradient: "Gradients", parameters: "Parameters", time: "Time" };
const TICK_SAMPLE = 2000;

/** Mount the table of a track; `at` says which step is chosen, and the returned `resize` draws it anew. */
export async function mountStepTable(container, track, at) {
  const rows = rowsOfTree(track.nodes, (node) => ({ fqn: node.fqn, name: node.name, node, values: node.module ?? {} }));
  const matrices = await Promise.all(track.statistics.map((statistic) => track.matrix(statistic.name)));
  const columns = [
    wordColumn("fqn", "Module", (row) => `${row.fqn || "(model)"}${row.node.path}`),
    wordColumn("type", "Type", (row) => row.values.type ?? ""),
    wordColumn("shape", "Shape", (row) => (row.values.shape ? shape(row.values.shape) : "")),
    ...track.statistics.map((statistic, i) => figureColumn(statistic, matrices[i], track, at)),
  ];
  return mountTable(container, { label: "Modules at the chosen step", rows, columns, depth: null, empty: "No module was measured." });
}

function figureColumn(statistic, matrix, track, at) {
  const read = ({ node }) => {
    const value = node.row < 0 ? ABSENT : matrix[node.row * track.steps.length + at()];
    return value === ABSENT ? null : value;
  };
  const { counts } = statistic;
  const ticks = !counts && statistic.kind !== "elements";
  let scale;
  return {
    key: statistic.name,
    title: declared(statistic.name).title.replace(/ (grad$|in .*)/, ""), // its group says the rest
    group: GROUPS[statistic.about] ?? statistic.about,
    hint: statistic.title,
    numeric: true,
    drop: statistic.drop,
    shown: !statistic.aside.includes("steps"),
    look: ticks ? "tick" : "",
    value: read,
    text: (row) => (counts && !read(row) ? "" : figureText(statistic, read(row))),
    tone: (row) => (counts && read(row) ? "bad" : ""),
    share: (row) => {
      scale ??= { found: heatScale(matrix, "auto", TICK_SAMPLE) };
      const value = read(row);
      return value === null || !Number.isFinite(value) || !scale.found || !ticks ? null : scale.found.shade(value) / 255;
    },
  };
}
