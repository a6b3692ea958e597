// A timeline of memory: a chart of its kinds, stacked, from operator to operator.

import { LineChart, mountedCharts } from "./chart.js";
import { h } from "./dom.js";
import { columnsOf } from "./declared.js";
import { bytes, num } from "./format.js";
import { select } from "./selection.js";

const KIND_COLORS = 8; // of series, in chart.css
const MIB = 2 ** 20;

/** Mount the chart; a click on a moment selects its module. */
export function mountTimeline(container, report) {
  const box = h("div", {});
  container.append(h("div", { class: "depth" }, box));
  return mountedCharts([new LineChart(box, timelineChart(report))]);
}

/** A band for each kind of memory, and the phases along the axis. */
function timelineChart({ rows, columns }) {
  const top = rows.reduce((best, row, i) => (num(row.highest) > num(rows[best].highest) ? i : best), 0);
  const text = ({ phase, fqn, operator }) => [phase, fqn, operator].filter(Boolean).join(" ");
  return {
    title: `Memory in use (MiB): peak ${bytes(num(rows[top].highest))} in ${text(rows[top])}`,
    x: rows.map((_, i) => i),
    names: rows.map(text),
    // The loss is a few operators, whose name would hide the word backward.
    ticks: rows.flatMap(({ phase }, i) => (phase === "loss" || (i && rows[i - 1].phase === phase) ? [] : [{ x: i, text: String(phase) }])),
    marks: [{ index: top, severity: "warning", text: "peak" }],
    lines: stackedLines(rows, columnsOf([{ columns }])),
    height: 300,
    format: (value) => (value === null ? "-" : bytes(Math.round(value * MIB))),
    onSelect: (index) => select(String(rows[index].fqn ?? ""), "timeline", null),
  };
}

/** Two edges for each kind that has bytes at any moment: the sum of the kinds before it, and that with its own. */
function stackedLines(rows, columns) {
  let below = rows.map(() => 0);
  const kinds = columns.filter(({ name, kind, shown }) => kind === "bytes" && shown === "set" && rows.some((row) => num(row[name])));
  return kinds.flatMap(({ name, title }, i) => {
    const edge = { band: title, color: `--series-${(i % KIND_COLORS) + 1}` };
    const above = rows.map((row, at) => below[at] + (num(row[name]) ?? 0) / MIB);
    const lines = [{ ...edge, label: `below ${title}`, values: below }, { ...edge, label: `up to ${title}`, values: above }];
    below = above;
    return lines;
  });
}
