// A recorded training: charts, a heat map and a table that show one step together.

import { takenIn } from "./data.js";
import { h } from "./dom.js";
import { recordHead } from "./header.js";
import { HeatMap } from "./heatmap.js";
import { choice } from "./menu.js";
import { onSelect, select, selected } from "./selection.js";
import { StepBar, StepDetail } from "./step_bar.js";
import { RowChart, StepCharts, axisChoice } from "./step_charts.js";
import { mountStepTable } from "./step_table.js";
import { firstBadSection, ranksSection, stepRemarks } from "./step_remarks.js";
import { StepTrack } from "./step_tracks.js";

const SOURCE = "steps";
const SCALES = [["auto", "Auto", "Logarithmic if figures span a factor of 50"], ["log", "Log", "Logarithmic"], ["linear", "Linear", "Linear; the outermost hundredth is beyond the ends"]];

/** Mount the view. */
export function mountSteps(container, context) {
  const view = new StepsView(container, context);
  if (context.payload.live) followLive(context.payload.live, view);
  return { show: () => view.mounted?.resize(), resize: () => view.mounted?.resize() };
}

class StepsView {
  constructor(container, context) {
    this.context = context;
    this.container = container;
    this.data = context.payload.steps;
    this.tracks = this.data.tracks.map((track) => new StepTrack(track));
    this.kind = "auto";
    this.ofRanks = false;
    this.index = 0;
    if (this.tracks.length) this.build();
    else container.append(h("p", { class: "nothing" }, "No whole step was recorded: there is nothing to show over steps."));
  }

  build() {
    this.track = this.tracks.find((track) => track.phase === "train") ?? this.tracks[0];
    this.bar = new StepBar(this.tracks, { onTrack: (track) => this.setTrack(track), onStep: (index) => this.setStep(index) });
    const charts = h("section", { class: "step-section", "aria-label": "Figures over steps" });
    this.remarks = h("section", { class: "step-section", "aria-label": "Remarks on steps" });
    this.table = h("section", { class: "step-table", "aria-label": "Modules at the chosen step" });
    this.charts = new StepCharts(charts, this.data.charts, (index) => this.setStep(index));
    this.detail = new StepDetail(this.context);
    this.detail.show(this.track, this.track.steps.length - 1);
    this.whole = h("div", { class: "step-whole" });
    this.container.replaceChildren(h("div", { class: "steps" }, this.bar.root, this.whole, h("div", { class: "step-ranks" }, this.data.ranks && this.rankChoice(), this.axisChoice()), charts, this.heatSection(), this.table, this.remarks));
    this.drawWhole();
    onSelect(({ fqn, source }) => this.follow(fqn, source));
    this.index = this.track.steps.length - 1;
    this.refresh();
  }

  /** Draw what concerns the whole run: the first value that is not finite, and the ranks. */
  drawWhole() {
    const { context, data } = this;
    const goTo = (found) => this.goTo(found);
    this.whole.replaceChildren(...[firstBadSection(context, data, goTo), ranksSection(context, data)].filter(Boolean));
  }

  /** Choose the module and step of a value that is not finite. */
  async goTo({ model, phase, step, fqn }) {
    const track = this.tracks.find((one) => one.model === model && one.phase === phase);
    if (!track) return;
    if (track !== this.track) await this.setTrack(track);
    this.setStep(Math.max(track.steps.indexOf(step), 0));
    select(fqn, "first-bad");
  }

  rankChoice() {
    const options = [["all", "All ranks together", "Figures of all ranks, merged"], ["each", "Each rank", "One line per rank"]];
    const set = (value) => {
      this.ofRanks = value === "each";
      this.drawCharts();
    };
    return choice("Ranks", options, "all", set).element;
  }

  axisChoice() {
    return axisChoice(this.tracks.map(({ times }) => times), () => {
      this.drawCharts();
      this.drawRow();
    });
  }

  heatSection() {
    const box = h("div", { class: "heat" });
    this.heat = new HeatMap(box, { onCell: (node, step) => this.onCell(node, step), onFold: () => this.drawRow() });
    this.statistics = h("select", { "aria-label": "Statistic", class: "heat-statistic", on: { change: () => this.drawHeat() } });
    const scales = choice("Scale", SCALES, this.kind, (kind) => {
      this.kind = kind;
      this.drawHeat();
    });
    const dense = h("input", { type: "checkbox", on: { change: (event) => this.heat.setDense(event.target.checked) } });
    const tools = h("div", { class: "heat-tools" }, h("h2", {}, "Modules by steps"), this.statistics, scales.element, h("label", { class: "heat-dense" }, dense, " fit all rows"));
    const over = h("div", { class: "step-row-chart" });
    this.rowChart = new RowChart(over, (index) => this.setStep(index));
    return h("section", { class: "step-section", "aria-label": "Heat map of modules by steps" }, tools, box, over);
  }

  /** Show a track, at the step with the number that was chosen, or the nearest before it. */
  async setTrack(track) {
    const step = this.track.steps[this.index];
    this.track = track;
    this.index = Math.max(0, track.steps.findLastIndex((each) => each <= step));
    await this.refresh();
  }

  /** Draw everything anew, after the track or its data have changed. */
  async refresh() {
    const { track } = this;
    this.index = Math.min(this.index, track.steps.length - 1);
    this.firstBad = await firstBadStep(track);
    track.marks = marksOf(track, this.firstBad, this.data.said);
    this.listStatistics();
    this.drawCharts();
    await this.drawHeat();
    this.table.replaceChildren();
    this.table.style.height = `${Math.min(track.nodes.length, 16) * 24 + 108}px`;
    this.mounted = await mountStepTable(this.table, track, () => this.index);
    if (this.track === track) this.setStep(this.index);
  }

  listStatistics() {
    const before = this.statistics.value;
    const groups = Map.groupBy(this.track.statistics, ({ about }) => about);
    const option = ({ name, title }) => h("option", { value: name, selected: name === before }, title);
    this.statistics.replaceChildren(...[...groups].map(([about, list]) => h("optgroup", { label: about[0].toUpperCase() + about.slice(1) }, list.map(option))));
  }

  drawCharts() {
    const own = ({ model, phase }) => model === this.track.model && phase === this.track.phase;
    this.charts.show(this.track, this.ofRanks ? this.data.ranks.tracks.filter(own) : null);
    this.charts.choose(this.index);
  }

  async drawHeat() {
    const statistic = this.track.statistics.find(({ name }) => name === this.statistics.value) ?? this.track.statistics[0];
    if (statistic) await this.heat.show(this.track, statistic, this.kind);
    this.heat.choose(selected().fqn, this.index, false);
    this.drawRow();
  }

  /** Chart the row that is chosen in the heat map. */
  drawRow() {
    if (this.heat.chosenRow) this.rowChart.show(this.track, this.heat.statistic, this.heat.chosenRow, this.index);
  }

  /** Choose a step, everywhere. */
  setStep(index) {
    this.index = Math.min(Math.max(index, 0), this.track.steps.length - 1);
    this.bar.show(this.track, this.index, this.firstBad);
    this.detail.show(this.track, this.index);
    this.charts.choose(this.index);
    this.heat.choose(selected().fqn, this.index, false);
    this.rowChart.choose(this.index);
    this.mounted?.resize();
    this.remarks.replaceChildren(...stepRemarks(this.track, this.index, (step) => this.setStep(step)));
  }

  onCell(node, step) {
    select(node.fqn, SOURCE);
    this.setStep(step);
    this.drawRow();
  }

  /** Show the module that was selected. */
  follow(fqn, source) {
    if (fqn === null || !this.heat.track) return;
    if (source !== SOURCE) this.heat.choose(fqn, this.index, true);
    this.drawRow();
  }

  /** Take in what a growing record has by now; what the reader has chosen stays, and the last step stays the last. */
  async take(news) {
    const { steps, reports } = takenIn(news);
    const atEnd = this.track && this.index === this.track.steps.length - 1;
    this.data = steps;
    this.context.payload.reports = reports;
    document.getElementById("record-head").replaceChildren(...recordHead(steps).filter(Boolean));
    steps.tracks.forEach((one, i) => (this.tracks[i] ? this.tracks[i].take(one) : this.tracks.push(new StepTrack(one))));
    if (!this.track) {
      if (this.tracks.length) this.build();
      return;
    }
    this.bar.list(this.tracks, this.track);
    this.drawWhole();
    if (atEnd) this.index = this.track.steps.length - 1;
    await this.refresh();
  }
}

/** The index of the first step in which any module has values that are not finite; -1 without any. */
async function firstBadStep(track) {
  const width = track.steps.length;
  let first = width;
  for (const about of ["output", "gradient", "parameters"]) {
    (await track.nonFinite(about)).forEach((bad, i) => bad && (first = Math.min(first, i % width)));
  }
  return first < width ? first : -1;
}

/** The first value that is not finite, the findings of checks where they begin, and what was said of steps, or of one before. */
function marksOf(track, firstBad, said) {
  const bad = firstBad < 0 ? [] : [{ index: firstBad, severity: "error", text: "first NaN or Inf", isFirst: true }];
  const found = track.findings.map(({ check, severity, fqn, steps }) => ({ index: steps[0][0], severity, text: `${check} ${fqn}`.trim() }));
  const own = said.filter(({ model }) => track.phase === "train" && (model === track.model || model.startsWith(`${track.model}, rank `)));
  const place = (step) => track.steps.findIndex((each) => each >= step);
  const lines = own.map(({ step, line }) => ({ index: place(step) < 0 ? track.steps.length - 1 : place(step), step, severity: "warning", text: line }));
  return [...bad, ...found, ...lines];
}

/** Fetch new steps as long as the record grows. */
function followLive({ path, seconds, version }, view) {
  let have = version;
  const state = h("p", { class: "live", role: "status" }, "live");
  document.body.append(state);
  const say = (text, lost) => {
    state.textContent = text;
    state.classList.toggle("live-lost", lost);
  };
  const look = async () => {
    const answer = await fetch(`${path}?have=${encodeURIComponent(have)}`);
    if (answer.status === 205) location.reload(); // another run has replaced the record
    if (answer.status !== 200) return;
    const found = await answer.json();
    have = found.version;
    await view.take(found);
  };
  const again = async () => {
    try {
      await look();
      say(`live · ${have.split(".").slice(2).reduce((sum, n) => sum + Number(n), 0).toLocaleString("en-US")} steps`, false);
    } catch {
      say("no longer live: hookcli has ended", true);
    }
    setTimeout(again, 1000 * seconds);
  };
  setTimeout(again, 1000 * seconds);
}
