// Activations and gradients through depth: two charts over the order of calls.
import { h } from "./dom.js";
import { LineChart, mountedCharts } from "./chart.js";
import { isWithin } from "./names.js";
import { depthPoints, depthTicks, normOf, rmsOf, statisticOf } from "./depth_points.js";
import { onSelect, select, selected } from "./selection.js";

/** True if reports have statistics to draw over depth. */
export function hasDepth({ model }) {
  const measured = model.modules.some(({ activations, outputGrads }) => activations.length || outputGrads.length);
  return measured || model.parameters.some(({ gradients }) => gradients.length > 0);
}

/** Mount the charts; they follow the selection, and a click selects. */
export function mountDepth(container, { model }) {
  const points = depthPoints(model);
  const specs = [activationChart(points), gradientChart(points)].filter((spec) => spec.lines.length);
  const shared = {
    x: points.map((_, place) => place),
    names: points.map((point) => point.name),
    ticks: depthTicks(points),
    marks: findingMarks(points, model),
    sync: "depth",
    onSelect: (index) => select(points[index].fqn, "depth", points[index].activation ?? points[index].grad ?? null),
  };
  const boxes = specs.map(() => h("div", {}));
  container.append(h("div", { class: "depth" }, boxes));
  const charts = specs.map((spec, i) => new LineChart(boxes[i], { ...shared, ...spec }));
  const choose = ({ fqn, row }) => {
    const own = row ? points.findIndex((point) => point.activation === row || point.grad === row) : -1;
    const place = own >= 0 ? own : pointOfModule(points, fqn === null || !model.modules.length ? fqn : (model.owner(fqn)?.fqn ?? null)); // a parameter's module, if there are any
    charts.forEach((chart) => chart.choose(place));
  };
  onSelect(choose);
  choose(selected());
  return mountedCharts(charts);
}

function depthLine(points, label, color, figure, more = {}) {
  return { label, color, values: points.map(figure), ...more };
}

function withFigures(lines) {
  return lines.filter(({ values }) => values.some((value) => value !== null));
}

function activationChart(points) {
  const of = (key) => (point) => statisticOf(point.activation, key);
  const band = { band: "min to max" };
  const lines = [
    depthLine(points, "min", "--series-1", of("min"), band),
    depthLine(points, "max", "--series-1", of("max"), band),
    depthLine(points, "mean", "--series-2", of("mean")),
    depthLine(points, "std", "--series-3", of("std")),
    depthLine(points, "rms", "--series-4", (point) => rmsOf(point.activation), { hidden: true }),
  ];
  return { title: "Activations through depth", lines: withFigures(lines) };
}

function gradientChart(points) {
  const own = points.some(({ activation, grad }) => activation || grad) ? "L2 of own parameters" : "L2 of each parameter";
  const lines = [
    depthLine(points, "L2 of output", "--series-1", (point) => statisticOf(point.grad, "l2")),
    depthLine(points, "rms of output", "--series-3", (point) => rmsOf(point.grad)),
    depthLine(points, own, "--series-2", (point) => normOf(point.parameters), { dots: true }),
  ];
  return { title: "Gradients through depth", lines: withFigures(lines) };
}

function findingMarks(points, model) {
  return model.modules.flatMap(({ fqn, findings }) => {
    const index = findings.length ? pointOfModule(points, fqn) : null;
    return index === null ? [] : findings.map(({ check, severity }) => ({ index, severity, text: `${check} ${severity}` }));
  });
}

/** The point of a module, or the last one inside it, where its output was made; null if there is none. */
function pointOfModule(points, fqn) {
  if (fqn === null) return null;
  const own = points.findIndex((point) => point.fqns.includes(fqn));
  const inside = own >= 0 ? own : points.findLastIndex((point) => fqn !== "" && isWithin(point.fqn, fqn));
  return inside >= 0 ? inside : null;
}
