// Charts over the order of execution: activations and gradients through depth, differences of a comparison, memory.

import { LineChart } from "./chart.js";
import { SHOWN } from "./data.js";
import { columnsOf } from "./declared.js";
import { h } from "./dom.js";
import { depthPoints, depthTicks, leavesFirst, normOf, rmsOf, statisticOf } from "./depth_points.js";
import { bytes, num } from "./format.js";
import { isWithin } from "./names.js";
import { onSelect, select, selected } from "./selection.js";

const KIND_COLORS = 8; // of series, in chart.css
const MIB = 2 ** 20;

/** True if reports have statistics to draw over depth. */
export function hasDepth({ modules, parameters }) {
  const measured = modules.some(({ activations, outputGrads }) => activations.length || outputGrads.length);
  return measured || parameters.some(({ gradients }) => gradients.length > 0);
}

/** Mount the charts; they follow the selection, and a click selects. */
export function mountDepth(container, { model }) {
  const points = depthPoints(model);
  const shared = {
    x: points.map((_, place) => place),
    names: points.map((point) => point.name),
    ticks: depthTicks(points),
    marks: model.modules.flatMap(({ fqn, findings }) => {
      const index = findings.length ? pointOfModule(points, fqn) : null;
      return index === null ? [] : findings.map(({ check, severity }) => ({ index, severity, text: `${check} ${severity}` }));
    }),
    sync: "depth",
    onSelect: (index) => select(points[index].fqn, "depth", points[index].activation ?? points[index].grad ?? null),
  };
  const box = h("div", { class: "depth" });
  container.append(box);
  const charts = [activationChart(points), gradientChart(points)].filter((spec) => spec.lines.length).map((spec) => new LineChart(box, { ...shared, ...spec }));
  const choose = ({ fqn, row }) => {
    const own = row ? points.findIndex((point) => point.activation === row || point.grad === row) : -1;
    const place = own >= 0 ? own : pointOfModule(points, fqn === null || !model.modules.length ? fqn : (model.owner(fqn)?.fqn ?? null)); // a parameter's module, if there are any
    charts.forEach((chart) => chart.choose(place));
  };
  onSelect(choose);
  choose(selected());
}

/** The lines that have any figure. */
function drawn(lines) {
  return lines.filter(({ values }) => values.some((value) => value !== null));
}

function activationChart(points) {
  const line = (label, series, figure, more) => ({ label, color: `--series-${series}`, values: points.map((point) => figure(point.activation)), ...more });
  const of = (key) => (row) => statisticOf(row, key);
  const band = { band: "min to max" };
  const lines = [
    line("min", 1, of("min"), band),
    line("max", 1, of("max"), band),
    line("mean", 2, of("mean")),
    line("std", 3, of("std")),
    line("rms", 4, rmsOf, { hidden: true }),
  ];
  return { title: "Activations through depth", lines: drawn(lines) };
}

function gradientChart(points) {
  const own = points.some(({ activation, grad }) => activation || grad) ? "L2 of own parameters" : "L2 of each parameter";
  const lines = [
    { label: "L2 of output", color: "--series-1", values: points.map(({ grad }) => statisticOf(grad, "l2")) },
    { label: "rms of output", color: "--series-3", values: points.map(({ grad }) => rmsOf(grad)) },
    { label: own, color: "--series-2", values: points.map(({ parameters }) => normOf(parameters)), dots: true },
  ];
  return { title: "Gradients through depth", lines: drawn(lines) };
}

/** The point of a module, or the last one inside it, where its output was made; null if there is none. */
function pointOfModule(points, fqn) {
  if (fqn === null) return null;
  const own = points.findIndex((point) => point.fqns.includes(fqn));
  const inside = own >= 0 ? own : points.findLastIndex((point) => fqn !== "" && isWithin(point.fqn, fqn));
  return inside >= 0 ? inside : null;
}

/** True if a comparison has tensors in an order to draw. */
export function hasDiffDepth({ parts }) {
  return parts.some((part) => comparedRows(part).length > 1);
}

/** The rows of a part that have an excess, in the order of execution. */
function comparedRows({ rows, kind }) {
  const compared = kind === "weight" ? [] : rows.filter((row) => num(row.times) !== null && "fqn" in row);
  if (kind !== "output") return compared;
  return leavesFirst(compared.map((row) => ({ module: { fqn: String(row.fqn) }, row }))).map(({ row }) => row);
}

/** Mount charts of how the excess grows, with both sides' spread beside it; they follow the selection, and a click selects. */
export function mountDiffDepth(container, { comparison }) {
  const box = h("div", { class: "diff-charts" });
  container.append(box);
  for (const part of comparison.parts) {
    const rows = comparedRows(part);
    if (rows.length < 2) continue;
    const shared = {
      x: rows.map((_, place) => place),
      ticks: depthTicks(rows),
      names: rows.map((row) => [row.fqn || "(model)", row.type, row.path].filter(Boolean).join(" · ")),
      onSelect: (place) => select(rows[place].fqn, "diff", rows[place]),
      sync: `diff ${part.title} ${part.diff.model}`,
    };
    const charts = [excessChart(rows, part), sidesChart(rows, part)].filter(Boolean).map((spec) => new LineChart(box, { ...shared, ...spec }));
    onSelect(({ fqn, row }) => {
      const place = rows.includes(row) ? rows.indexOf(row) : rows.findIndex((one) => one.fqn === fqn);
      charts.forEach((chart) => chart.choose(place < 0 ? null : place));
    });
  }
}

function excessChart(rows, { title }) {
  const excess = { label: "excess", color: "--series-1", values: rows.map((row) => num(row.times)) };
  const limit = { label: "tolerance", color: "--bad", values: rows.map(() => 1) };
  const marks = rows.flatMap((row, index) => (row[SHOWN].agreement === "beyond" ? [{ index, severity: "error", text: row.differs ?? "beyond tolerance" }] : []));
  return { title: `${title}: difference in units of the tolerance`, lines: [excess, limit], marks };
}

function sidesChart(rows, { title }) {
  if (!rows.some((row) => "a_std" in row || "b_std" in row)) return null;
  const lines = ["a", "b"].map((side, place) => ({ label: side.toUpperCase(), color: `--series-${place + 1}`, values: rows.map((row) => num(row[`${side}_std`])) }));
  return { title: `${title}: standard deviation in A and B`, lines };
}

/** Mount the chart of a timeline of memory, with a band for each kind and the phases along the axis; a click on a moment selects its module. */
export function mountTimeline(container, { rows, columns }) {
  const top = rows.reduce((best, row, i) => (num(row.highest) > num(rows[best].highest) ? i : best), 0);
  const text = ({ phase, fqn, operator }) => [phase, fqn, operator].filter(Boolean).join(" ");
  const box = h("div", { class: "depth" });
  container.append(box);
  new LineChart(box, {
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
  });
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
