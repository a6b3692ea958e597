// The legend of a heat map: the scale's colours with figures, and what the other marks mean.

import { h } from "./dom.js";
import { figureText } from "./format.js";
import { shadesOf } from "./heat_scale.js";

/** A legend; `root` is its element. */
export class HeatLegend {
  constructor() {
    this.bar = h("canvas", { class: "heat-bar", width: "256", height: "1", "aria-hidden": "true" });
    this.ends = h("div", { class: "heat-ends" });
    const marks = [["heat-key-absent", "not measured"], ["heat-key-bad", "NaN or Inf"]];
    const keys = marks.map(([name, text]) => h("span", { class: "heat-key" }, h("span", { class: `heat-swatch ${name}` }), text));
    this.root = h("div", { class: "heat-legend" }, h("div", { class: "heat-scale" }, this.bar, this.ends), ...keys);
  }

  show(scale, statistic, theme) {
    this.bar.hidden = !scale;
    if (!scale) {
      this.ends.replaceChildren(h("span", {}, "no finite figure"));
      return;
    }
    this.bar.getContext("2d").putImageData(new ImageData(shadesOf(scale, theme), 256, 1), 0, 0);
    const figures = [0, 0.5, 1].map((share) => figureText(statistic, scale.valueAt(share)));
    const beyond = scale.clips ? "; ends stand for all beyond" : "";
    this.ends.replaceChildren(...figures.map((text) => h("span", {}, text)));
    this.bar.title = `${scale.kind === "log" ? "logarithmic" : "linear"}${beyond}`;
  }
}
