// A heat map of modules by steps: rows fold as the tree does, the chosen step and module are marked, keys move both.

import { onTheme } from "./color.js";
import { framed, h } from "./dom.js";
import { ROUND_STEPS } from "./chart_values.js";
import { count, figureText } from "./format.js";
import { HeatLegend, heatScale, paintCells } from "./heat_colors.js";
import { ABSENT } from "./data.js";
import { rowReader } from "./step_tracks.js";

const HEAT_ROW = 18; // height of a row in CSS pixels
const LOWEST_LABEL = 11; // height of a row that still has a name
const TALLEST = 520; // of the rows together; more of them scroll
const UNFOLDED = 28; // rows that are shown at first, at most, if folding can do that

/** A heat map in a container. */
export class HeatMap {
  /** @param {{onCell: (node: StepNode, step: number) => void, onFold: () => void}} options */
  constructor(container, options) {
    this.options = options;
    this.folded = new Set();
    this.dense = false;
    this.at = { node: null, step: 0 };
    this.readout = h("p", { class: "heat-readout", "aria-live": "polite" });
    this.labels = h("div", { class: "heat-labels" });
    this.canvas = h("canvas", { class: "heat-canvas", "aria-hidden": "true" });
    this.column = h("div", { class: "heat-column" });
    this.line = h("div", { class: "heat-line" });
    const pointed = {
      mousemove: (event) => this.#read(this.#cellAt(event)),
      mouseleave: () => this.#read(this.at),
      click: (event) => this.#choose(this.#cellAt(event)),
    };
    this.plot = h("div", { class: "heat-plot", on: pointed }, this.canvas, this.column, this.line);
    this.view = h("div", { class: "heat-view" }, this.labels, this.plot);
    this.sizer = h("div", { class: "heat-sizer" }, this.view);
    this.paint = framed(() => this.#paint());
    const on = { scroll: this.paint, keydown: (event) => this.#onKey(event) };
    this.scroller = h("div", { class: "heat-scroller", tabindex: "0", role: "application", "aria-roledescription": "heat map", on }, this.sizer);
    this.axis = h("div", { class: "heat-axis", "aria-hidden": "true" });
    this.legend = new HeatLegend();
    this.summary = h("p", { class: "visually-hidden" });
    container.replaceChildren(this.legend.root, this.readout, this.scroller, this.axis, this.summary);
    new ResizeObserver(this.paint).observe(this.scroller);
    onTheme(this.scroller, () => {
      if (this.track) this.legend.show(this.scale, this.statistic);
      this.paint();
    });
  }

  /** Show a statistic of a track. */
  async show(track, statistic, kind) {
    const matrix = await track.matrix(statistic.name);
    const read = await rowReader(track, statistic);
    if (track !== this.track) this.#foldAtFirst(track);
    Object.assign(this, { track, statistic, read, scale: heatScale(matrix, kind) });
    this.at = { node: this.#shown(this.at.node) ?? track.nodes[0] ?? null, step: Math.min(this.at.step, track.steps.length - 1) };
    this.legend.show(this.scale, statistic);
    this.summary.textContent = summaryOfCells(track, statistic, matrix, await track.nonFinite(statistic.about));
    this.scroller.setAttribute("aria-label", `${statistic.title}: modules by steps. Arrows move, Space folds, Enter selects.`);
    this.#arrange();
  }

  #foldAtFirst(track) {
    this.folded.clear();
    const deepest = Math.max(0, ...track.nodes.map((node) => node.level));
    const upTo = (level) => track.nodes.filter((node) => node.level <= level).length;
    const levels = Array.from({ length: deepest + 1 }, (_, level) => level).filter((level) => upTo(level) <= UNFOLDED);
    const level = upTo(deepest) <= 2 * UNFOLDED ? deepest : Math.max(1, ...levels);
    track.nodes.filter((node) => node.children.length && node.level >= level).forEach((node) => this.folded.add(node.key));
  }

  #arrange() {
    const hidden = (node) => node.parent && (this.folded.has(node.parent.key) || hidden(node.parent));
    this.rows = this.track.nodes.filter((node) => !hidden(node));
    this.height = this.dense ? Math.max(1, Math.min(HEAT_ROW, Math.floor(TALLEST / Math.max(this.rows.length, 1)))) : HEAT_ROW;
    this.sizer.style.height = `${this.rows.length * this.height}px`;
    this.scroller.style.maxHeight = `${TALLEST}px`;
    this.paint();
  }

  /** Show rows as low as all of them need to fit at once, or high enough for their names. */
  setDense(dense) {
    this.dense = dense;
    this.#arrange();
  }

  /** Mark a module and a step, which another view chose; its row is unfolded and scrolled to. */
  choose(fqn, step, scrolls) {
    this.at = { node: fqn === null ? this.at.node : (this.track.byFqn.get(fqn) ?? this.at.node), step };
    for (let node = this.at.node?.parent; node && scrolls; node = node.parent) this.folded.delete(node.key);
    if (scrolls) this.#arrange();
    if (scrolls) this.#scrollTo(this.at.node);
    this.#read(this.at);
    this.paint();
  }

  /** The node itself, or the folded container that hides it; of another track the node of its name. */
  #shown(node) {
    let found = node && (this.track.byFqn.get(node.fqn) ?? null);
    for (let one = found; one; one = one.parent) if (one.parent && this.folded.has(one.parent.key)) found = one.parent;
    return found;
  }

  #scrollTo(node) {
    const top = this.rows.indexOf(this.#shown(node)) * this.height;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.scroller.scrollTop = top + this.height - clientHeight;
  }

  #cellAt(event) {
    const box = this.plot.getBoundingClientRect();
    const row = Math.floor((event.clientY - this.scroller.getBoundingClientRect().top - this.scroller.clientTop + this.scroller.scrollTop) / this.height);
    const step = Math.floor(((event.clientX - box.left) / box.width) * this.track.steps.length);
    return { node: this.rows[row] ?? null, step: Math.min(Math.max(step, 0), this.track.steps.length - 1) };
  }

  /** The figures of the chosen row over all steps. */
  get chosenRow() {
    const { node } = this.at;
    return node && { node, ...this.read(node, this.folded.has(node.key)) };
  }

  #choose(cell) {
    if (!cell.node) return;
    this.at = cell;
    this.#read(cell);
    this.paint();
    this.options.onCell(cell.node, cell.step);
  }

  #read({ node, step }) {
    if (!node || !this.track) return;
    const { values, bad } = this.read(node, this.folded.has(node.key));
    const figure = values[step] === ABSENT ? "not measured" : figureText(this.statistic, values[step]);
    const parts = this.folded.has(node.key) ? " with its parts" : "";
    const said = [this.track.stepName(step), `${node.fqn || "(model)"}${node.path}${parts} ${node.module?.type ?? ""}`.trim(), `${this.statistic.title} ${figure}`];
    this.readout.replaceChildren(said.join(" · "), bad[step] ? h("strong", { class: "heat-bad" }, " not finite") : "");
  }

  toggle(node) {
    if (!node?.children.length) return;
    if (!this.folded.delete(node.key)) this.folded.add(node.key);
    this.#arrange();
    this.#read(this.at);
    this.options.onFold();
  }

  #onKey(event) {
    const [row, last] = [this.rows.indexOf(this.#shown(this.at.node)), this.track.steps.length - 1];
    const page = Math.max(1, Math.round(last / 20));
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: page, PageUp: -page, Home: -last, End: last };
    const rows = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps) this.#choose({ node: this.rows[Math.max(row, 0)], step: Math.min(Math.max(this.at.step + steps[event.key], 0), last) });
    else if (event.key in rows) this.#choose({ node: this.rows[Math.min(Math.max(row + rows[event.key], 0), this.rows.length - 1)], step: this.at.step });
    else if (event.key === " ") this.toggle(this.at.node);
    else if (event.key === "Enter") this.#choose(this.at);
    else return;
    event.preventDefault();
    this.#scrollTo(this.at.node);
  }

  #paint() {
    if (!this.track || !this.scroller.clientWidth) return;
    const { scrollTop, clientHeight } = this.scroller;
    const first = Math.floor(scrollTop / this.height);
    const shown = this.rows.slice(first, first + Math.ceil(clientHeight / this.height) + 1);
    this.view.style.top = `${first * this.height}px`;
    this.view.style.height = `${shown.length * this.height}px`;
    const rows = shown.map((node) => this.read(node, this.folded.has(node.key)));
    paintCells(this.canvas, rows, { height: this.height, width: this.plot.clientWidth, scale: this.scale });
    this.#mark(shown);
    this.labels.replaceChildren(...(this.height < LOWEST_LABEL ? [] : shown.map((node, i) => this.#label(node, rows[i]))));
    this.#drawAxis();
  }

  #mark(shown) {
    const width = this.plot.clientWidth / this.track.steps.length;
    const row = shown.indexOf(this.#shown(this.at.node));
    Object.assign(this.column.style, { left: `${this.at.step * width}px`, width: `${Math.max(width, 1)}px` });
    Object.assign(this.line.style, { top: `${row * this.height}px`, height: `${this.height}px` });
    this.line.hidden = row < 0;
  }

  #label(node, row) {
    const folded = this.folded.has(node.key);
    const sign = node.children.length ? (folded ? "▸" : "▾") : "";
    const twisty = h("span", { class: "heat-twisty", "aria-hidden": sign ? "true" : null }, sign);
    const type = node.module?.type ?? "";
    const click = (event) => (event.target === twisty ? this.toggle(node) : this.#choose({ node, step: this.at.step }));
    return h(
      "div",
      {
        class: node === this.#shown(this.at.node) ? "heat-label heat-label-chosen" : "heat-label",
        title: `${node.fqn || "(model)"} ${type}`,
        style: { height: `${this.height}px`, "padding-left": `${4 + 12 * Math.min(node.level, 6)}px` },
        on: { click },
      },
      twisty,
      h("span", { class: "heat-name" }, node.name, h("span", { class: "dim" }, ` ${type}`)),
      row.bad.includes(1) && h("span", { class: "heat-bad", title: "has values that are not finite" }, "!"),
    );
  }

  #drawAxis() {
    const [left, width] = [this.plot.offsetLeft, this.plot.clientWidth];
    const { steps } = this.track;
    const most = Math.max(2, Math.floor(width / 70));
    const unit = ROUND_STEPS.find((size) => (steps[steps.length - 1] - steps[0] || 1) / size <= most);
    const ticks = steps.flatMap((step, index) => (step % unit === 0 && steps[index - 1] !== step ? [index] : []));
    const place = (index) => left + ((index + 0.5) / steps.length) * width;
    this.axis.replaceChildren(...ticks.map((index) => h("span", { style: { left: `${place(index)}px` } }, count(steps[index]))));
  }
}

/** One sentence on the whole map, for people who can't see it. */
function summaryOfCells(track, statistic, matrix, bad) {
  const width = track.steps.length;
  let [least, most] = [-1, -1];
  matrix.forEach((value, i) => {
    if (value === ABSENT || !Number.isFinite(value)) return;
    if (least < 0 || value < matrix[least]) least = i;
    if (most < 0 || value > matrix[most]) most = i;
  });
  const place = (i) => `${track.modules[Math.floor(i / width)].fqn || "the model"} at ${track.stepName(i % width)}`;
  const ends = least < 0 ? "nothing finite" : `lowest ${figureText(statistic, matrix[least])} in ${place(least)}, highest ${figureText(statistic, matrix[most])} in ${place(most)}`;
  const number = bad.reduce((sum, one) => sum + one, 0);
  return `${statistic.title}, ${track.modules.length} modules by ${width} steps: ${ends}; ${number ? `${number} cells are not finite` : "all finite"}.`;
}
