// The top of a comparison: its verdict, the first divergence, what "beyond tolerance" means, and how differences grow.

import { h } from "./dom.js";
import { LineChart } from "./chart.js";
import { cell, count, num, number } from "./format.js";
import { counts, firstBeyond, stateOf } from "./diff_model.js";
import { onSelect, select } from "./selection.js";

const STATES = { beyond: "beyond tolerance", within: "within tolerance", equal: "equal", added: "only in B", removed: "only in A" };
const KINDS = { output: "outputs", grad_output: "gradients of outputs", grad: "gradients of parameters", weight: "parameters and buffers", parameter: "gradients of parameters", input: "gradients of inputs", loss: "loss" };
const SAID = ["structure", "settings", "grew", "weights"];

/**
 * Mount the summary of one comparison.
 * @param {HTMLElement} container
 * @param {{payload: Payload}} context
 * @param {Report} diff
 */
export function mountDiff(container, { payload }, diff) {
  const lines = payload.lines?.[payload.reports.indexOf(diff)];
  const charts = [];
  container.append(h("section", { class: "diff", "aria-label": "Comparison" }, verdict(diff, lines), first(diff), legend(diff), said(diff), explanation(diff)));
  for (const spec of chartsOf(diff)) {
    const box = h("div", { class: "diff-chart" });
    container.append(box);
    charts.push(new LineChart(box, spec));
  }
  onSelect(({ row, fqn }) => charts.forEach((chart) => chart.choose(chart.spec.places.get(row) ?? chart.spec.byName.get(fqn) ?? null)));
  const each = (method) => () => charts.forEach((chart) => chart[method]());
  return { resize: each("resize"), show: each("resize"), retheme: each("retheme") };
}

function verdict(diff, lines) {
  const beyond = Number(diff.totals.beyond) > 0;
  const text = diff.totals.verdict ?? lines?.verdict ?? "";
  return h("p", { class: beyond ? "diff-verdict diff-bad" : "diff-verdict diff-good" }, text);
}

function first(diff) {
  const row = firstBeyond(diff);
  if (!row) return null;
  const name = h("button", { type: "button", class: "diff-first-name", title: "Select it", on: { click: () => select(row.fqn, "diff", row) } }, row.fqn || "(model)");
  const what = [row.type, KINDS[row.kind] && row.kind !== "output" ? KINDS[row.kind] : null, row.path, row.call ? `call ${row.call}` : null];
  return h("div", { class: "diff-first" }, h("span", { class: "diff-label" }, "First divergence"), name, h("span", { class: "diff-dim" }, what.filter(Boolean).join(" · ")), h("span", {}, row.differs ?? ""), h("span", {}, `${number(num(row.times))} times the tolerance`));
}

function legend(diff) {
  const found = [...counts(diff)].filter(([, total]) => total);
  return h("ul", { class: "diff-legend" }, ...found.map(([state, total]) => h("li", {}, h("span", { class: `diff-swatch diff-${state}` }), `${count(total)} ${STATES[state]}`)));
}

function said(diff) {
  return SAID.filter((key) => diff.totals[key]).map((key) => h("p", { class: "diff-said" }, String(diff.totals[key])));
}

function explanation(diff) {
  return h("details", { class: "diff-how" }, h("summary", {}, "How differences are judged"), ...explained(diff).map((text) => h("p", {}, text)));
}

function explained(diff) {
  const { rtol, atol, of } = diff.meta;
  const given = (rtol ?? null) !== null ? `rtol is ${number(num(rtol))}, as given` : "rtol is the square root of the dtype's epsilon, so that half of its digits agree: 3.5e-4 for float32, 0.031 for float16, 0.088 for bfloat16; for gradients ten times that";
  const absolute = (atol ?? null) !== null ? ` and atol is ${number(num(atol))}` : "";
  const rule = of
    ? "Each statistic may differ by as much as it would if every element moved by rtol times the root mean square of A's elements. Shapes, dtypes and counts of NaN and Inf must be equal."
    : "A tensor is beyond tolerance if the norm of its difference, relative to the norm of A's tensor, is above rtol.";
  return [`${rule} Here ${given}${absolute}.`, "Excess is the difference in units of what is allowed: above 1 it is beyond tolerance.", "The first divergence is the first in the order of execution; a part comes before the module that contains it."];
}

/** A chart of excess over the order of calls, with a line per kind of tensor and one for the limit. */
function chartsOf(diff) {
  const rows = diff.rows.filter((row) => num(row.times) !== null);
  const kinds = [...new Set(rows.map((row) => row.kind ?? "output"))].filter((kind) => kind !== "weight");
  return kinds.filter((kind) => rows.some((row) => (row.kind ?? "output") === kind)).map((kind, place) => chartOf(rows.filter((row) => (row.kind ?? "output") === kind), kind, place)).filter((spec) => spec.names.length > 1);
}

function chartOf(rows, kind) {
  return {
    title: `Excess of ${Object.hasOwn(KINDS, kind) ? KINDS[kind] : kind}, in the order of execution`,
    x: rows.map((_, place) => place),
    names: rows.map((row) => [cell(row, "fqn"), row.type].filter(Boolean).join(" · ")),
    lines: [
      { label: "excess", color: "--series-1", values: rows.map((row) => num(row.times)) },
      { label: "tolerance", color: "--bad", values: rows.map(() => 1) },
    ],
    marks: rows.flatMap((row, index) => (stateOf(row) === "beyond" ? [{ index, severity: "error", text: row.differs ?? STATES.beyond }] : [])),
    onSelect: (index) => select(rows[index].fqn, "diff", rows[index]),
    places: new Map(rows.map((row, place) => [row, place])),
    byName: new Map(rows.map((row, place) => [row.fqn, place])),
  };
}
