// The model's own figures over steps: loss, learning rates, norms, times and memory, of the run or of each rank.

import { LineChart } from "./chart.js";
import { h } from "./dom.js";
import { declared } from "./declared.js";
import { figureText, num } from "./format.js";
import { ABSENT } from "./matrix.js";

const COLORS = 6; // of series, in chart.css
const FIRST_CHARTS = 4; // those after them are folded away at first

/** Charts that show one track, with one cursor. */
export class StepCharts {
  /** @param {[string, Object<string, string>][]} kinds the title of each chart, and its figures with their labels; "" is a figure's title */
  constructor(container, kinds, onStep) {
    Object.assign(this, { kinds, onStep });
    this.charts = new Map();
    this.first = h("div", { class: "step-charts" });
    this.rest = h("div", { class: "step-charts" });
    this.more = h("details", { class: "step-more" }, h("summary", {}, "Times, memory, outputs and weights of the model"), this.rest);
    container.append(this.first, this.more);
  }

  /** @param {Object<string, any>[]|null} ranks tracks of ranks, to draw one line for each of them */
  show(track, ranks) {
    this.x = placesOf(track.steps);
    this.track = track;
    this.kinds.forEach(([title, labels], place) => {
      const [name] = Object.keys(labels);
      this.#draw(title, ranks ? rankLines(ranks, name) : linesOf(track, labels), name, place);
    });
    this.more.hidden = !this.rest.childElementCount;
  }

  #draw(title, lines, name, place) {
    const chart = this.charts.get(title);
    if (!lines.length) {
      chart?.destroy();
      chart?.box.remove();
      this.charts.delete(title);
      return;
    }
    const spec = { ...chartOfSteps(this.track, this.onStep), title, lines, format: (value) => figureText(declared(name), value) };
    if (chart) return void chart.update(spec);
    const box = h("div", { class: "step-chart" });
    (place < FIRST_CHARTS ? this.first : this.rest).append(box);
    this.charts.set(title, Object.assign(new LineChart(box, spec), { box }));
  }

  /** Mark a step in all charts. */
  choose(index) {
    for (const chart of this.charts.values()) chart.choose(this.x[index] ?? null);
  }

  resize() {
    for (const chart of this.charts.values()) chart.resize();
  }

  retheme() {
    for (const chart of this.charts.values()) chart.retheme();
  }
}

/** A chart of one row of the heat map. */
export class RowChart {
  constructor(container, onStep) {
    Object.assign(this, { container, onStep });
  }

  /** @param {number} index of the chosen step */
  show(track, statistic, { node, values, bad }, index) {
    this.x = placesOf(track.steps);
    const figures = Array.from(values, (value, i) => (value === ABSENT || (Number.isNaN(value) && !bad[i]) ? null : value));
    const title = `${statistic.title}: ${node.fqn || "(model)"}${node.path}`;
    const marks = bad.includes(1) ? [{ index: bad.indexOf(1), severity: "error", text: "not finite from here on" }] : [];
    const lines = [{ label: statistic.title, values: figures, color: "--series-1" }];
    const spec = { ...chartOfSteps(track, this.onStep), title, lines, marks, format: (value) => figureText(statistic, value) };
    if (this.chart) this.chart.update(spec);
    else this.chart = new LineChart(this.container, spec);
    this.choose(index);
  }

  choose(index) {
    this.chart?.choose(this.x[index] ?? null);
  }

  resize() {
    this.chart?.resize();
  }

  retheme() {
    this.chart?.retheme();
  }
}

/** Places on the axis: the numbers of steps, or of forwards and of steps that a GradScaler repeats, their order. */
export function placesOf(steps) {
  return steps.every((step, i) => !i || step > steps[i - 1]) ? steps : steps.map((_, i) => i);
}

function chartOfSteps(track, onSelect) {
  const x = placesOf(track.steps);
  const ticks = x === track.steps ? undefined : x.map((i) => ({ x: i, text: String(track.steps[i]) }));
  return { x, ticks, names: track.names, marks: track.marks ?? [], sync: "steps", height: 150, onSelect };
}

function linesOf(track, labels) {
  const names = Object.keys(labels);
  const figures = names.map((name) => track.figure(name)).filter(Boolean);
  const shown = figures.filter((figure) => figure.name !== "unclipped_grad" || wasClipped(figure, figures[0]));
  const lines = shown.map((figure) => ({ label: labels[figure.name] || figure.title, figure }));
  if (names[0] === "lr") lines.splice(0, lines.length, ...track.groups.flatMap((group) => ofGroup(group, "lr")));
  if (names[0] === "loss") lines.push(...track.groups.flatMap((group) => ofGroup(group, "loss"))); // of optimizers that step in turns
  if (names[0] === "ratio" && track.groups.length > 1) lines.push(...track.groups.flatMap((group) => ofGroup(group, "ratio")));
  return lines.map(({ label, figure }, i) => lineOf(label, figure, i));
}

/** True if the norm before clipping differs from the one after it at any step, by more than rounding. */
function wasClipped(before, after) {
  return before.values.some((value, i) => Math.abs(num(value) - num(after.values[i])) > 1e-3 * num(value));
}

function ofGroup(group, name) {
  const figure = group.figures.find((one) => one.name === name);
  return figure ? [{ label: group.title, figure }] : [];
}

function rankLines(ranks, name) {
  const found = ranks.map(({ rank, figures }) => [rank, figures.find((one) => one.name === name)]).filter(([, figure]) => figure);
  return found.map(([rank, figure], i) => lineOf(`rank ${rank}`, figure, i));
}

/** A line. The ratio of weights of 0 that did not change is NaN, which is no fault but no figure. */
function lineOf(label, { name, values }, i) {
  const figure = (value) => (name === "ratio" && Number.isNaN(num(value)) ? null : num(value));
  return { label, values: values.map(figure), color: `--series-${(i % COLORS) + 1}` };
}
