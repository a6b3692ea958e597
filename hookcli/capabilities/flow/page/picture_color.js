// Colours the boxes of the forward picture by a figure of their modules.

import { css, scaleOf, sequential } from "./color.js";
import { h } from "./dom.js";
import { isOwnPlace } from "./flow_tree.js";
import { finiteOf } from "./declared.js";
import { num, number, quantity } from "./format.js";

const FIGURES_OF_BOXES = [
  { key: "params", title: "Parameters", of: (module) => module.shapes[0]?.params ?? null, text: quantity },
  { key: "macs", title: "MACs", of: ({ figures }) => figures.shapes?.macs ?? null, text: quantity },
  { key: "rms", title: "Activation rms", of: ({ figures: { activations: all } }) => (all && finiteOf(all) > 0 ? num(all.l2) / Math.sqrt(finiteOf(all)) : null), text: number },
  { key: "grad", title: "Gradient L2", of: ({ figures }) => num(figures.outputGrads?.l2), text: number },
];

/**
 * A choice of the figure, with a legend; of a comparison, the excess of each module's output is chosen at first.
 * @param {Map<string, number>} [excess] by module
 * @returns {{element: HTMLElement, paint: (boxes: Placed[], svg: SVGElement) => void}}
 */
export function colorChoice(model, changed, excess) {
  const compared = excess ? [{ key: "excess", title: "Excess", of: (module) => excess.get(module.fqn) ?? null, text: number }] : [];
  const offered = [...compared, ...FIGURES_OF_BOXES].filter((figure) => model.modules.some((module) => figure.of(module) !== null));
  const choice = h("select", { class: "picture-by", on: { change: changed } }, h("option", { value: "" }, "none"), offered.map(({ key, title }) => h("option", { value: key }, title)));
  if (offered[0] === compared[0]) choice.value = offered[0]?.key ?? "";
  const legend = h("span", { class: "picture-legend", hidden: true });
  const shades = Array.from({ length: 9 }, (_, i) => css(sequential(i / 8)));
  const ramp = h("span", { class: "picture-ramp", "aria-hidden": "true", style: { background: `linear-gradient(to right, ${shades.join(", ")})` } });
  const element = h("span", { class: "picture-color", hidden: !offered.length }, h("label", {}, "Colour ", choice), legend);
  const paint = (boxes, svg) => {
    const figure = offered.find(({ key }) => key === choice.value);
    const moduleOf = (box) => (box.kind === "module" || isOwnPlace(box)) && model.byFqn.get(box.place);
    const values = new Map(boxes.filter(({ open }) => !open).map(({ box }) => [box.key, figure && moduleOf(box) ? figure.of(moduleOf(box)) : null]));
    const scale = scaleOf(values.values());
    for (const element of svg.querySelectorAll(".flow-box")) colorBox(element, values.get(element.dataset.key), scale);
    legend.hidden = !figure || !(scale.high >= scale.low);
    if (!legend.hidden) legend.replaceChildren(figure.text(scale.low), ramp, figure.text(scale.high));
  };
  return { element, paint };
}

function colorBox(element, value, scale) {
  const share = scale.at(value ?? null);
  const rgb = share === null ? null : sequential(share);
  element.querySelector("rect").style.fill = rgb ? css(rgb) : "";
  const isDark = rgb !== null && rgb[0] * 0.3 + rgb[1] * 0.59 + rgb[2] * 0.11 < 125;
  element.classList.toggle("flow-on-dark", isDark);
  element.classList.toggle("flow-on-light", rgb !== null && !isDark);
}
