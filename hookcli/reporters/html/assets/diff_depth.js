// Differences through depth: how the excess grows in the order of execution, and both sides' spread beside it.

import { h } from "./dom.js";
import { LineChart, mountedCharts } from "./chart.js";
import { num } from "./format.js";
import { depthTicks, leavesFirst } from "./depth_points.js";
import { agreement } from "./diff_model.js";
import { onSelect, select } from "./selection.js";

/** True if a comparison has tensors in an order to draw. */
export function hasDiffDepth({ comparison }) {
  return comparison.parts.some((part) => drawnRows(part).length > 1);
}

function drawnRows({ rows, kind }) {
  const drawn = kind === "weight" ? [] : rows.filter((row) => num(row.times) !== null && "fqn" in row);
  if (kind !== "output") return drawn;
  return leavesFirst(drawn.map((row) => ({ module: { fqn: String(row.fqn) }, row }))).map(({ row }) => row);
}

/** Mount the charts; they follow the selection, and a click selects. */
export function mountDiffDepth(container, { comparison }) {
  const box = h("div", { class: "diff-charts" });
  container.append(box);
  const charts = comparison.parts.flatMap((part) => {
    const rows = drawnRows(part);
    const found = rows.length > 1 ? [excessChart(part, rows), sidesChart(part, rows)].filter(Boolean) : [];
    return found.map((spec) => {
      const own = h("div", { class: "diff-chart" });
      box.append(own);
      return { rows, chart: new LineChart(own, spec) };
    });
  });
  const follow = ({ fqn, row }) => charts.forEach(({ rows, chart }) => chart.choose(placeIn(rows, fqn, row)));
  onSelect(follow);
  return mountedCharts(charts.map(({ chart }) => chart));
}

function placeIn(rows, fqn, row) {
  const place = rows.includes(row) ? rows.indexOf(row) : rows.findIndex((one) => one.fqn === fqn);
  return place < 0 ? null : place;
}

function shared(rows, part) {
  return {
    x: rows.map((_, place) => place),
    ticks: depthTicks(rows),
    names: rows.map((row) => [row.fqn || "(model)", row.type, row.path].filter(Boolean).join(" · ")),
    onSelect: (place) => select(rows[place].fqn, "diff", rows[place]),
    sync: `diff ${part.title} ${part.diff.model}`,
  };
}

function excessChart(part, rows) {
  const excess = { label: "excess", color: "--series-1", values: rows.map((row) => num(row.times)) };
  const limit = { label: "tolerance", color: "--bad", values: rows.map(() => 1) };
  const marks = rows.flatMap((row, index) => (agreement(row) === "beyond" ? [{ index, severity: "error", text: row.differs ?? "beyond tolerance" }] : []));
  return { ...shared(rows, part), title: `${part.title}: difference in units of the tolerance`, lines: [excess, limit], marks };
}

function sidesChart(part, rows) {
  if (!rows.some((row) => "a_std" in row || "b_std" in row)) return null;
  const lines = ["a", "b"].map((side, place) => ({ label: side.toUpperCase(), color: `--series-${place + 1}`, values: rows.map((row) => num(row[`${side}_std`])) }));
  return { ...shared(rows, part), title: `${part.title}: standard deviation in A and B`, lines };
}
