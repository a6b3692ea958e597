// Two records over their steps: the loss and other figures of both models, each pair in one chart.

import { h } from "./dom.js";
import { LineChart, mountedCharts } from "./chart.js";
import { num } from "./format.js";
import { placesOf } from "./step_charts.js";

const B = "_b"; // ends the names of B's figures
const CHARTS_SHOWN = 4; // charts at once; the others fold

/**
 * Mount the charts of the models of two records.
 * @param {Report[]} history as `hookcli show A --against B` has it
 * @param {string[]} first the figures to chart before all others
 */
export function mountDiffSteps(container, history, first) {
  const charts = [];
  for (const report of history) {
    const specs = specsOf(report, first);
    const [open, folded] = [h("div", { class: "diff-charts" }), h("div", { class: "diff-charts" })];
    specs.forEach((spec, place) => {
      const box = h("div", { class: "diff-chart" });
      (place < CHARTS_SHOWN ? open : folded).append(box);
      charts.push(new LineChart(box, spec));
    });
    container.append(h("section", { "aria-label": report.model }, h("h2", { class: "diff-heading" }, `${report.model}: A and B over steps`), h("p", { class: "diff-dim" }, `A is ${report.meta.against.a}, B is ${report.meta.against.b}`), open));
    if (folded.childNodes.length) container.append(h("details", { class: "diff-how" }, h("summary", {}, "Other figures over steps"), folded));
  }
  return mountedCharts(charts);
}

/** A chart for each figure that either record has. */
function specsOf(report, first) {
  const names = report.columns.map((column) => column.name);
  const paired = report.columns.filter((column) => names.includes(column.name + B));
  const place = ({ name }) => (first.includes(name) ? first.indexOf(name) : first.length);
  paired.sort((one, other) => place(one) - place(other));
  return paired.map((column) => specOf(report, column)).filter((spec) => spec.lines.some((line) => line.values.some((value) => value !== null)));
}

function specOf(report, column) {
  const values = (name) => report.rows.map((row) => num(row[name]));
  return {
    title: column.title + (column.unit ? ` (${column.unit})` : ""),
    x: placesOf(report.rows.map((row) => row.step)),
    names: report.rows.map((row) => `step ${row.step}` + ((row.forward ?? null) === null ? "" : `, forward ${row.forward}`)),
    lines: [
      { label: "A", color: "--series-1", values: values(column.name) },
      { label: "B", color: "--series-2", values: values(column.name + B) },
    ],
    sync: `diff ${report.model} ${report.meta.mode}`,
    height: 180,
  };
}
