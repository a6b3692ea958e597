// A chart of figures over steps or calls: uPlot, with a legend that reads the point under the cursor, keys and a summary.
import { onTheme } from "./color.js";
import { button, h } from "./dom.js";
import { number } from "./format.js";
import { axisOf, drawable, summaryOf } from "./chart_values.js";
import { chartOptions } from "./chart_options.js";

/**
 * @typedef {object} Line
 * @property {string} label
 * @property {(number | null | undefined)[]} values a figure per point; null leaves a gap, NaN and infinities a gap with a cross, undefined none
 * @property {string} color a custom property, such as "--series-1"
 * @property {string} [band] label of a band: two consecutive lines of one band are its lower and upper edge
 * @property {boolean} [dots] draw points without a line between them
 * @property {boolean} [hidden] at first
 *
 * @typedef {object} ChartSpec
 * @property {string} title
 * @property {number[]} x increasing: steps, or places in the order of calls
 * @property {string[]} names of the points: "step 200", "layer1.0.conv1"
 * @property {Line[]} lines
 * @property {boolean} [timed] `x` are seconds
 * @property {[number, number]} [span] of the x axis, which goes on where nothing was recorded; without it the span of `x`
 * @property {{x: number, text: string}[]} [ticks] of the x axis; without them uPlot's own
 * @property {{index: number, severity: string, text: string}[]} [marks] findings
 * @property {(index: number) => void} [onSelect] a click, or Enter, on a point
 * @property {[number, number]} [limits] of the y axis, beyond which lines are cut off
 * @property {string} [sync] charts with one key share cursor and zoom
 * @property {number} [height] in CSS pixels
 * @property {(value: number | null) => string} [format] of figures
 */

/** A chart in a container. A page hides, shows, resizes and colours it as it likes; what is hidden is drawn once it shows. */
export class LineChart {
  constructor(container, spec) {
    this.readout = h("span", { class: "chart-point" });
    this.legend = h("div", { class: "chart-legend", role: "group", "aria-label": "Lines of the chart" });
    this.tools = h("div", { class: "chart-tools" });
    this.summary = h("p", { class: "chart-summary" });
    const on = { keydown: (event) => this.#onKey(event), click: () => this.#select() };
    this.plotBox = h("div", { class: "chart-plot", tabindex: "0", role: "slider", "aria-orientation": "horizontal", on });
    this.heading = h("h2", { class: "chart-title" });
    const head = h("div", { class: "chart-head" }, this.heading, this.readout, this.tools);
    this.root = h("figure", { class: "chart" }, head, this.legend, this.plotBox, this.summary);
    container.append(this.root);
    this.hidden = new Set(spec.lines.filter((line) => line.hidden).map(legendName));
    this.axisChosen = null; // by the reader, else it is the one that suits the figures
    this.chosen = null;
    this.at = null; // index of the point under the cursor
    this.observer = new ResizeObserver(() => this.#resize());
    this.observer.observe(this.plotBox);
    onTheme(this.root, () => this.#build());
    this.update(spec);
  }

  /** Draw other figures; the reader's choice of lines, axis and zoom is kept. */
  update(spec) {
    this.spec = spec;
    this.heading.textContent = spec.title;
    this.plotBox.setAttribute("aria-label", spec.title);
    this.plotBox.setAttribute("aria-valuemin", "0");
    this.plotBox.setAttribute("aria-valuemax", String(Math.max(spec.names.length - 1, 0)));
    this.summary.textContent = summaryOf(spec.title, spec.names, spec.lines);
    this.#build();
  }

  /** Mark the point at `x` until another is chosen; null marks none. */
  choose(x) {
    this.chosen = x;
    this.plot?.redraw(false);
    this.#read();
  }

  #resize() {
    const width = this.plotBox.clientWidth;
    if (!width) return;
    if (!this.plot) this.#build();
    else if (width !== this.plot.width) this.plot.setSize({ width, height: this.plot.height });
  }

  /** Show or hide the lines of a name. */
  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.#build();
  }

  /** Take the chart away. */
  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
    this.root.remove();
  }

  #build() {
    const zoom = this.plot && this.#isZoomed() ? { ...this.plot.scales.x } : null;
    this.plot?.destroy();
    this.plot = null;
    const known = this.spec.lines.flatMap((line) => line.values).filter(Number.isFinite);
    const shown = this.spec.lines.filter((line) => !this.hidden.has(legendName(line)));
    const suits = axisOf(this.spec.limits ? [this.spec.limits] : shown.map((line) => line.values));
    this.axis = { ...suits, kind: this.axisChosen ?? suits.kind };
    this.#drawTools(suits.kind);
    this.#drawLegend();
    this.root.classList.toggle("chart-empty", !known.length);
    const text = this.spec.lines.some((line) => line.values.some((value) => (value ?? null) !== null)) ? "Every figure is NaN or infinite." : "Nothing to draw: no figure was measured.";
    this.plotBox.replaceChildren(...(known.length ? [] : [h("p", { class: "chart-nothing" }, text)]));
    if (known.length && this.plotBox.clientWidth) this.#plot(zoom);
    this.#read();
  }

  #plot(zoom) {
    const parts = this.spec.lines.map((line) => drawable(line.values, this.axis.kind === "log"));
    this.odd = parts.flatMap((part, i) => (this.hidden.has(legendName(this.spec.lines[i])) ? [] : part.odd));
    const isFinite = this.odd.map(({ value }) => Number.isFinite(value)); // of the marks at the edges
    if (isFinite.includes(false)) this.legend.append(h("span", { class: "chart-odd bad" }, "× NaN or infinite"));
    const { x, names, span = [] } = this.spec;
    if (span[0] < x[0] || span[1] > x[x.length - 1]) this.legend.append(h("span", { class: "chart-odd" }, `recorded: ${names[0]} to ${names[names.length - 1]}`));
    if (isFinite.includes(true)) this.legend.append(h("span", { class: "chart-odd" }, "╷ 0 or negative"));
    const data = [[...this.spec.x], ...parts.map((part) => part.drawn)];
    this.plot = new uPlot(chartOptions(this), data, this.plotBox);
    if (zoom) this.plot.setScale("x", { min: zoom.min, max: zoom.max });
  }

  #drawTools(suits) {
    const logarithmic = this.spec.lines.some((line) => line.values.some((value) => value < 0)) ? "signed" : "log";
    const next = this.axis.kind !== "linear" ? "linear" : suits === "linear" ? logarithmic : suits;
    const text = { linear: "linear", log: "logarithmic", signed: "logarithmic ±" }[this.axis.kind];
    const choose = () => {
      this.axisChosen = next;
      this.#build();
      this.tools.lastChild.focus();
    };
    this.zoomOut = button({ class: null, hidden: true, title: "Show all points (Escape)" }, () => this.resetZoom(), "Reset zoom");
    this.tools.replaceChildren(this.zoomOut, button({ class: null, title: `The axis is ${text}; click for the other kind` }, choose, text));
  }

  #drawLegend() {
    const byName = Map.groupBy(this.spec.lines, legendName);
    this.entries = [...byName].map(([name, lines]) => ({ lines, value: h("span", { class: "chart-value" }), name }));
    this.legend.replaceChildren(...this.entries.map((entry) => this.#legendEntry(entry)));
  }

  #legendEntry({ name, lines: [line], value }) {
    const swatch = h("span", { class: line.band ? "chart-swatch chart-swatch-band" : "chart-swatch", style: { color: `var(${line.color})` } });
    const toggle = () => {
      this.toggle(name);
      this.legend.children[this.entries.findIndex((entry) => entry.name === name)].focus();
    };
    return button({ class: null, "aria-pressed": String(!this.hidden.has(name)), title: "Show or hide" }, toggle, swatch, name, value);
  }

  /** Write the point under the cursor, else the chosen one, into the legend and for screen readers. */
  #read() {
    const chosen = this.chosen === null ? -1 : this.spec.x.indexOf(this.chosen);
    const index = this.at ?? chosen;
    const { names, lines, marks = [] } = this.spec;
    const found = marks.filter((mark) => mark.index === index).map((mark) => mark.text);
    this.readout.textContent = index >= 0 ? [names[index], ...found].join(" · ") : "";
    for (const entry of this.entries) {
      entry.value.textContent = index >= 0 ? entry.lines.map((line) => this.figure(line, index)).join(" … ") : "";
    }
    const figures = lines.map((line) => `${line.label} ${this.figure(line, index)}`);
    this.plotBox.setAttribute("aria-valuenow", String(Math.max(index, 0)));
    this.plotBox.setAttribute("aria-valuetext", index >= 0 ? [names[index], ...figures, ...found].join(", ") : "no point");
  }

  /** The figure of a line at a point, as text. */
  figure(line, index) {
    const before = this.spec.timed ? line.values.findLastIndex((value, i) => i <= index && value !== undefined) : index; // of another run's step
    const value = line.values[before] ?? null;
    return Number.isNaN(value) ? "NaN" : (this.spec.format ?? number)(value);
  }

  /** uPlot's cursor moved: `index`: the nearest point's, null outside. */
  onCursor(index) {
    if (index === this.at) return;
    this.at = index;
    this.#read();
  }

  /** uPlot's x axis was zoomed, or shows all again. */
  onZoom() {
    this.zoomOut.hidden = !this.#isZoomed();
  }

  /** uPlot lays its scales out after it was made: one that is drawn twice at once has none yet. */
  #isZoomed() {
    const { min, max } = this.plot.scales.x;
    const [x] = this.plot.data; // those drawn: the spec may have more by now
    return x.length > 1 && min !== null && (min > x[0] || max < x[x.length - 1]);
  }

  /** Show all points again, in all charts of one key. */
  resetZoom() {
    const plots = this.spec.sync ? uPlot.sync(this.spec.sync).plots : [this.plot];
    for (const plot of plots) plot.setData(plot.data, true);
  }

  #select() {
    if (this.at !== null) this.spec.onSelect?.(this.at);
  }

  #onKey(event) {
    const last = this.spec.x.length - 1;
    const now = this.at ?? Math.max(this.spec.x.indexOf(this.chosen), 0);
    const page = Math.max(Math.round(last / 20), 2);
    const steps = { ArrowRight: now + 1, ArrowLeft: now - 1, PageUp: now + page, PageDown: now - page, Home: 0, End: last };
    if (event.key === "Enter") this.#select();
    else if (event.key === "Escape") this.resetZoom();
    else if (event.key in steps) this.#moveTo(Math.min(Math.max(steps[event.key], 0), last));
    else return;
    event.preventDefault();
  }

  #moveTo(index) {
    const left = this.plot.valToPos(this.spec.x[index], "x");
    this.plot.setCursor({ left, top: this.plot.over.clientHeight / 2 }, true, true); // also in charts of the same key
    this.onCursor(index); // a point outside the zoom, or beside one that is closer
  }
}

function legendName(line) {
  return line.band ?? line.label;
}
