// Charts over steps: the model's own figures, of a run or of each of its ranks, and one row of the heat map.

import { LineChart } from "./chart.js";
import { h } from "./dom.js";
import { declared } from "./declared.js";
import { figureText, num } from "./format.js";
import { ABSENT } from "./data.js";
import { choice } from "./menu.js";
import { clockOf } from "./chart_values.js";

const COLORS = 6; // of series, in chart.css
const FIRST_CHARTS = 4; // those after them are folded away at first
const AXES = [["step", "Steps", "Over the numbers of steps"], ["time", "Time", "Over the time since the run began"]];
let axis = "step"; // of all charts of the page

/** A choice of steps or time, nothing for `clocks` without times; `changed` is called after it. */
export function axisChoice(clocks, changed) {
  const choose = (value) => {
    axis = value;
    changed();
  };
  return clocks.length && clocks.every((times) => times?.length && times.every(Number.isFinite)) ? choice("Axis", AXES, axis, choose).element : null;
}

/** True if the reader chose time. */
export function isTimed() {
  return axis === "time";
}

/** Charts that show one track, with one cursor. */
export class StepCharts {
  /** @param {[string, Object<string, string>][]} kinds the title of each chart, and its figures with their labels; "" is a figure's title */
  constructor(container, kinds, onStep) {
    Object.assign(this, { kinds, onStep });
    this.charts = new Map();
    this.first = h("div", { class: "step-charts" });
    this.rest = h("div", { class: "step-charts" });
    this.more = h("details", { class: "step-more" }, h("summary", {}, "More figures of the model: times, memory, outputs, weights"), this.rest);
    container.append(this.first, this.more);
  }

  /** @param {Object<string, any>[]|null} ranks tracks of ranks, to draw one line for each of them */
  show(track, ranks) {
    this.x = placesOf(track);
    this.track = track;
    this.kinds.forEach(([title, labels], place) => {
      const [name] = Object.keys(labels);
      const ofRanks = ranks?.flatMap(({ rank, figures }) => figures.filter((one) => one.name === name).map((figure) => [`rank ${rank}`, figure]));
      this.#draw(title, ofRanks ? ofRanks.map(lineOf) : linesOf(track, labels), name, place);
    });
    this.more.hidden = !this.rest.childElementCount;
  }

  #draw(title, lines, name, place) {
    const chart = this.charts.get(title);
    const format = (value) => figureText(declared(name), value);
    const steps = chartOfSteps(this.track, this.onStep);
    const every = name === "loss" && lines.length === 1 && !steps.ticks && this.track.losses;
    const spec = every ? { ...steps, ...lossesOf(this.track, lines[0], this.onStep), title, format } : { ...steps, title, lines, format };
    if (!lines.length) {
      chart?.destroy();
      this.charts.delete(title);
    } else if (chart) chart.update(spec);
    else this.charts.set(title, new LineChart(place < FIRST_CHARTS ? this.first : this.rest, spec));
  }

  /** Mark a step in all charts. */
  choose(index) {
    for (const chart of this.charts.values()) chart.choose(this.x[index] ?? null);
  }
}

/** A chart of one row of the heat map. */
export class RowChart {
  constructor(container, onStep) {
    Object.assign(this, { container, onStep });
  }

  /** @param {number} index of the chosen step */
  show(track, statistic, { node, values, bad }, index) {
    this.x = placesOf(track);
    const figures = Array.from(values, (value, i) => (value === ABSENT || (Number.isNaN(value) && !bad[i]) ? null : value));
    const title = `${statistic.title}: ${node.fqn || "(model)"}${node.path}`;
    const marks = bad.includes(1) ? [{ index: bad.indexOf(1), severity: "error", text: "not finite from here on" }] : [];
    const lines = [{ label: statistic.title, values: figures, color: "--series-1" }];
    const spec = { ...chartOfSteps(track, this.onStep), title, lines, marks, format: (value) => figureText(statistic, value) };
    if (this.chart) this.chart.update(spec);
    else this.chart = new LineChart(this.container, spec);
    this.node = node;
    this.choose(index);
    this.#showDistribution(track, node, index);
  }

  /** Chart how the module's output is distributed over steps: bands that are darker where more elements lie. */
  async #showDistribution(track, node, index) {
    const has = (name) => node.row >= 0 && track.statistics.some((one) => one.name === name);
    const from = node.row * track.steps.length;
    const read = async (name) => Array.from((await track.matrix(name)).subarray(from, from + track.steps.length), (value) => (value === ABSENT ? null : value));
    const [middle, ...pairs] = has("p50") ? ["p50", ["p1", "p99"], ["p25", "p75"]] : ["mean"];
    const names = ["min", "max", ...pairs.flat(), middle, ...(pairs.length ? [] : ["std"])];
    const figures = names.every(has) ? await Promise.all(names.map(async (name) => [name, await read(name)])) : [];
    const of = Object.fromEntries(figures);
    const spread = (sign) => of.mean.map((mean, i) => (Number.isFinite(mean) && Number.isFinite(of.std[i]) ? mean + sign * of.std[i] : null));
    const band = (title, edges) => edges.map(([label, values]) => ({ label, band: title, color: "--series-1", values }));
    const bandOf = (pair) => band(pair.map((name) => declared(name).title.toLowerCase()).join(" to "), pair.map((name) => [declared(name).title, of[name]]));
    const inner = () => (pairs.length ? pairs.flatMap(bandOf) : band("mean ± std", [["mean - std", spread(-1)], ["mean + std", spread(1)]]));
    const lines = figures.length ? [...bandOf(["min", "max"]), ...inner(), { label: declared(middle).title, color: "--series-2", values: of[middle] }] : [];
    if (node !== this.node) return;
    const spec = { ...chartOfSteps(track, this.onStep), title: `Distribution of the output: ${node.fqn || "(model)"}${node.path}`, lines, height: 220 };
    if (lines.length && !this.fan) this.fan = new LineChart(this.container, spec);
    else this.fan?.update(spec);
    this.choose(index);
  }

  choose(index) {
    for (const chart of [this.chart, this.fan]) chart?.choose(this.x[index] ?? null);
  }
}

/** Places on the axis: times, or the numbers of steps, or of forwards and of steps that a GradScaler repeats, their order. */
export function placesOf({ steps, times }) {
  if (times && isTimed()) return times;
  return steps.every((step, i) => !i || step > steps[i - 1]) ? steps : steps.map((_, i) => i);
}

function chartOfSteps(track, onSelect) {
  const x = placesOf(track);
  const all = [...x, ...(track.losses ? placesOfLosses(track) : [])]; // losses may go on where no step was recorded
  const ticks = x === track.steps || isTimed() ? undefined : x.map((i) => ({ x: i, text: String(track.steps[i]) }));
  return { x, span: ticks ? undefined : [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))], ticks, timed: isTimed(), names: track.names, marks: track.marks ?? [], sync: "steps", height: 150, onSelect };
}

function placesOfLosses({ steps, times, losses }) {
  return isTimed() ? losses.steps.map(clockOf(steps.map((step, i) => [step, times[i]]))) : losses.steps;
}

/** The loss of every step, recorded or not; a click chooses the recorded step that is nearest. */
function lossesOf(track, line, onStep) {
  const { steps, losses, marks = [] } = track;
  const values = losses.values.map(num);
  const first = values.findIndex((value) => value !== null && !Number.isFinite(value)); // perhaps in a step that was not recorded
  const nearest = (step) => steps.reduce((best, one, i) => (Math.abs(one - step) < Math.abs(steps[best] - step) ? i : best), 0);
  return {
    x: placesOfLosses(track),
    names: losses.steps.map((step) => `step ${step}`),
    lines: [{ ...line, values }],
    marks: marks.map((mark) => ({ ...mark, index: mark.isFirst && first >= 0 ? first : Math.max(losses.steps.indexOf(mark.step ?? steps[mark.index]), 0) })),
    onSelect: (index) => onStep(nearest(losses.steps[index])),
  };
}

function linesOf(track, labels) {
  const names = Object.keys(labels);
  const figures = names.flatMap((name) => track.figures.filter((one) => one.name === name));
  const clips = (value, i) => Math.abs(num(value) - num(figures[0].values[i])) > 1e-3 * num(value); // by more than rounding
  const shown = figures.filter(({ name, values }) => name !== "unclipped_grad" || values.some(clips));
  const whole = shown.map((figure) => [labels[figure.name] || figure.title, figure]);
  const ofGroups = track.groups.flatMap(({ title, figures: own }) => own.filter(({ name }) => name === names[0]).map((figure) => [title, figure]));
  const isDivided = names[0] === "loss" || (names[0] === "ratio" && track.groups.length > 1); // losses of optimizers that step in turns
  return (names[0] === "lr" ? ofGroups : [...whole, ...(isDivided ? ofGroups : [])]).map(lineOf);
}

/** A line. The ratio of weights of 0 that did not change is NaN, which is not a fault, nor a figure. */
function lineOf([label, { name, values }], i) {
  const figure = (value) => (name === "ratio" && Number.isNaN(num(value)) ? null : num(value));
  return { label, values: values.map(figure), color: `--series-${(i % COLORS) + 1}` };
}
