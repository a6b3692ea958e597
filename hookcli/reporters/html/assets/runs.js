// Several recorded runs: a table with a row for each, and their figures over steps, each in one chart with all runs.

import { LineChart } from "./chart.js";
import { columnsOf } from "./declared.js";
import { button, h } from "./dom.js";
import { cell, num } from "./format.js";
import { choice } from "./menu.js";
import { axisChoice, isTimed, placesOf } from "./step_charts.js";
import { clockOf, timeText } from "./chart_values.js";

const RUN_COLORS = 8; // of series, in chart.css
const RUN_CHARTS = 4; // those after them are folded away at first
const MEANS = [1, 5, 20, 100]; // steps over which a point may be a mean
const FAR = 10; // times the largest figure of sound runs; beyond, a run that diverged leaves the axis
const SETTING_KIND = "setting"; // the kind of columns that are drawn as they are

/** Mount the tables of runs, and their charts. */
export function mountRuns(container, { payload }) {
  const tables = payload.reports.filter(({ probe }) => probe === "runs");
  const box = h("div", { class: "runs" }, tables.map(runsTable));
  container.append(box);
  mountHistory(box, payload.reports.filter(({ meta }) => meta.against), payload.charted);
}

function runsTable(report) {
  const declared = columnsOf([report]).filter(({ name }) => report.columns.some((column) => column.name === name));
  const columns = declared.filter((column) => report.rows.some((row) => cell(row, column)));
  const titles = new Map(report.columns.map(({ name, title }) => [name, title]));
  const isBad = (row, { name }) => name === "loss" && Number.isNaN(num(row[name]) ?? 0);
  const looks = ({ kind }) => (kind === "text" ? "runs-text" : null);
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: looks(column) }, titles.get(column.name))));
  const line = (row) => h("tr", {}, columns.map((column, i) => h(i ? "td" : "th", { class: isBad(row, column) ? "bad" : looks(column), "data-title": titles.get(column.name) }, cell(row, column))));
  return h("div", { class: "runs-scroll" }, h("table", { class: "runs-table", "aria-label": report.model }, h("thead", {}, head), h("tbody", {}, report.rows.map(line))));
}

/**
 * Mount charts of several records' figures, one chart for each figure, below a legend of all charts.
 * @param {Report[]} history as `hookcli show A B` has it
 * @param {string[]} first the figures to chart before all others
 */
export function mountHistory(container, history, first) {
  for (const report of history) {
    const sides = Object.entries(report.meta.against).map(([side, name], i) => ({ label: side.toUpperCase(), ending: i ? `_${side}` : "", name, color: `--series-${(i % RUN_COLORS) + 1}` }));
    const [open, folded] = [h("div", { class: "diff-charts runs-charts" }), h("div", { class: "diff-charts runs-charts" })];
    const charts = specsOfRuns(report, sides, first, 1).map((spec, place) => new LineChart(place < RUN_CHARTS ? open : folded, spec));
    let over = 1;
    const draw = () => specsOfRuns(report, sides, first, over).forEach((spec, i) => charts[i].update(spec));
    const smooth = (chosen) => {
      over = Number(chosen);
      draw();
    };
    const means = choice("Mean over", MEANS.map((steps) => [String(steps), steps > 1 ? `${steps} steps` : "each step"]), "1", smooth);
    const heading = h("h2", { class: "diff-heading" }, `${report.model}: ${sides.length > 2 ? `${sides.length} runs` : "A and B"} over steps`);
    const bar = h("div", { class: "runs-bar" }, legendOfRuns(sides, charts), h("span", { class: "diff-dim" }, "Mean over"), means.element, axisChoice((report.meta.clock ?? []).map((pairs) => pairs.flat()), draw));
    container.append(h("section", { "aria-label": report.model }, heading, bar, open));
    if (folded.childNodes.length) container.append(h("details", { class: "diff-how" }, h("summary", {}, "Other figures over steps"), folded));
  }
}

/** A button for each run, which shows or hides it in all charts. */
function legendOfRuns(sides, charts) {
  const entry = ({ label, name, color }) => {
    const toggle = () => {
      charts.forEach((chart) => chart.toggle(label));
      one.setAttribute("aria-pressed", String(one.getAttribute("aria-pressed") === "false"));
    };
    const one = button({ class: null, "aria-pressed": "true", title: "Show or hide" }, toggle, h("span", { class: "chart-swatch", style: { color: `var(${color})` } }), `${label}: ${name}`);
    return one;
  };
  return h("div", { class: "chart-legend", role: "group", "aria-label": "Runs" }, sides.map(entry));
}

/** A chart for each figure that any record has; `over` steps make a point of a figure that is not a setting. */
function specsOfRuns({ model, meta, columns, rows }, sides, first, over) {
  const names = columns.map(({ name }) => name);
  const place = ({ name }) => (first.includes(name) ? first.indexOf(name) : first.length);
  const shared = columns.filter(({ name }) => names.includes(name + sides[1].ending)).toSorted((one, other) => place(one) - place(other));
  const kinds = new Map(columnsOf([{ columns: shared, rows }]).map(({ name, kind }) => [name, kind]));
  const named = ({ step, forward }) => `step ${step}` + ((forward ?? null) === null ? "" : `, forward ${forward}`);
  const specs = shared.map(({ name, title, unit }) => {
    const whole = name === "loss" && meta.loss_of_steps?.length === sides.length && meta.loss_of_steps.every((losses) => losses.length) ? lossesOfRuns(meta.loss_of_steps) : null;
    const steps = whole ? whole.steps : rows.map(({ step }) => step);
    const every = whole?.values ?? sides.map(({ ending }) => rows.map((row) => num(row[name + ending]) ?? undefined));
    const smooth = kinds.get(name) === SETTING_KIND ? every : every.map((each) => means(steps, each, over));
    const numbered = { x: placesOf({ steps }), names: whole ? steps.map((step) => `step ${step}`) : rows.map(named), values: smooth };
    const { x, names: points, values } = isTimed() ? overTime(steps, smooth, meta.clock) : numbered;
    return {
      title: title + (unit ? ` (${unit})` : ""),
      x,
      timed: isTimed(),
      names: points,
      lines: sides.map(({ label, color }, i) => ({ label, color, values: values[i] })),
      limits: limitsOfRuns(values),
      sync: `diff ${model} ${meta.mode}`,
      height: name === "loss" ? 280 : 180,
    };
  });
  const shown = specs.filter(({ lines }) => lines.some(({ values }) => values.some((value) => (value ?? null) !== null)));
  const span = [shown.reduce((least, { x }) => Math.min(least, x[0]), Infinity), shown.reduce((most, { x }) => Math.max(most, x[x.length - 1]), -Infinity)];
  return shown.map((spec) => ({ ...spec, span }));
}

/** The values of each run over the time since it began; undefined at the times of other runs' steps. */
function overTime(steps, values, clocks) {
  const timed = values.map((own, i) => new Map(steps.flatMap((step, k) => (own[k] === undefined ? [] : [[clockOf(clocks[i])(step), own[k]]]))));
  const x = [...new Set(timed.flatMap((own) => [...own.keys()]))].sort((a, b) => a - b);
  return { x, names: x.map(timeText), values: timed.map((own) => x.map((time) => own.get(time))) };
}

/** The lowest and the highest figure of the runs that stayed finite, if one that did not leaves them no room; else undefined. */
function limitsOfRuns(values) {
  const finite = (lines) => lines.flat().filter(Number.isFinite);
  const sound = finite(values.filter((line) => line.every((value) => value === undefined || Number.isFinite(value))));
  const [all, most] = [finite(values), sound].map((figures) => figures.reduce((top, value) => Math.max(top, Math.abs(value)), 0));
  return most > 0 && all > FAR * most ? [sound.reduce((a, b) => Math.min(a, b)), sound.reduce((a, b) => Math.max(a, b))] : undefined;
}

/** The losses of every step of all runs: the steps that any has, and for each run a loss or undefined. */
function lossesOfRuns(known) {
  const ofRuns = known.map((losses) => new Map(losses.map(([step, loss]) => [step, num(loss)])));
  const steps = [...new Set(ofRuns.flatMap((losses) => [...losses.keys()]))].sort((a, b) => a - b);
  return { steps, values: ofRuns.map((losses) => steps.map((step) => losses.get(step) ?? undefined)) };
}

/** Each value the mean over so many steps up to its own; what is not finite stays as it is. */
function means(steps, values, over) {
  let begin = 0;
  return values.map((value, i) => {
    while (steps[begin] <= steps[i] - over) begin += 1;
    const finite = values.slice(begin, i + 1).filter(Number.isFinite);
    return Number.isFinite(value) ? finite.reduce((sum, each) => sum + each, 0) / finite.length : value;
  });
}
