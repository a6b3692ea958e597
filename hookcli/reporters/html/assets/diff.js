// The top of a comparison, with its verdict and first divergence; and the pane beside it, on the chosen place.

import { columnsOf, spoken } from "./declared.js";
import { callsTable, detailName, detailSection, statisticsTable } from "./detail.js";
import { agreement, errorsOf, firstBeyond, isOverSteps, nameInB, ownRows, tensorKind } from "./diff_model.js";
import { button, h, phrases } from "./dom.js";
import { cell, count, num, number } from "./format.js";
import { histogram } from "./histogram.js";
import { ownerOf } from "./names.js";
import { onSelect, select, selected } from "./selection.js";

const MANY = 1000; // times the tolerance, which say less than both figures
const MOST_ROWS = 8; // with their figures at once
const AGREEMENTS = { beyond: "beyond tolerance", within: "within tolerance", equal: "equal", added: "only in B", removed: "only in A" };
const WHAT = { received: "input", grad_output: "gradient of its output", grad_input: "gradient of its input", grad: "gradient", weight: "parameter or buffer", parameter: "gradient", input: "gradient of its input" };
const SAID = ["structure", "grew", "weights"];

/** Mount the summary of the comparisons. */
export function mountDiffSummary(container, { payload, comparison }) {
  const several = comparison.diffs.length > 1;
  const changed = comparison.parts.flatMap(({ rows }) => rows).find((row) => row.reset);
  const first = comparison.diffs.map(firstBeyond).find(Boolean) ?? changed;
  if (first) select(first.fqn, "diff", first);
  const commands = payload.reports.map((report, i) => report.probe === "diff" && payload.lines?.[i]?.next);
  const next = commands.some(Boolean) ? h("p", { class: "diff-dim" }, commands.find(Boolean)) : null;
  const how = h("details", { class: "diff-how" }, h("summary", {}, "How differences are judged"), howJudged(comparison.diffs[0]).map((text) => h("p", {}, text)));
  container.append(h("div", { class: "diff" }, comparison.diffs.map((diff) => diffSummary(diff, several, comparison.diffs[0])), unlike(comparison), sizes(comparison), next, how));
}

/** The settings in which the two runs differ. */
function unlike({ diffs: [diff] }) {
  const [a, b] = ["a", "b"].map((side) => diff.meta[side] ?? {});
  const differ = Object.keys(a).filter((key) => key in b && JSON.stringify(a[key]) !== JSON.stringify(b[key]) && typeof a[key] !== "object" && !/seconds|value|record/.test(key));
  return differ.length ? h("p", { class: "diff-dim" }, "The runs differ: ", phrases(differ.map((key) => `${key} ${a[key]} → ${b[key]}`))) : null;
}

/** Parameters and operations, where the sides have other numbers of them. */
function sizes({ a, b }) {
  const totals = [a, b].map((side) => Object.assign({}, ...side.reports.map((report) => report.totals)));
  const named = [["params", "parameters"], ["macs", "MACs"], ["kept_bytes", "bytes kept for backward"]];
  const differ = named.filter(([key]) => totals.every((each) => Object.hasOwn(each, key)) && totals[0][key] !== totals[1][key]);
  return differ.length ? h("p", { class: "diff-dim" }, phrases(differ.map(([key, title]) => `${title} ${count(totals[0][key])} → ${count(totals[1][key])}`))) : null;
}

function diffSummary(diff, several, { meta }) {
  const bad = Number(diff.totals.beyond) > 0 || errorsOf(diff).length > 0;
  if (diff.meta.of && meta.a?.record) return firstCard(diff, diff.model.split(": ").at(-1)); // the verdict on the runs says the rest
  const verdict = String(diff.totals.verdict ?? "");
  const isOnLosses = Boolean(diff.meta.a?.record && (diff.totals.apart || diff.totals.first)); // which run is better is not an error
  const kind = isOnLosses && !/ loss was /.test(verdict) ? "" : bad ? "error" : "good";
  const lamp = kind && h("span", { class: "lamp", "aria-hidden": "true" });
  const name = several ? `${diff.meta.a?.record ? diff.model : (diff.meta.of ?? diff.model)}: ` : "";
  const lines = (keys, kind) => keys.filter((key) => diff.totals[key]).map((key) => h("p", { class: kind }, String(diff.totals[key])));
  return h(
    "section", { class: "diff-one" },
    h("p", { class: `verdict ${kind}`.trim() }, lamp, `${name}${verdict}`),
    lines(["settings"], diff.meta.a?.record ? "diff-cause" : "diff-said"), // the verdict on two models begins with them
    several ? null : lines(["parting", "apart"], "diff-said"),
    several ? null : lines(["first"], "diff-said error"),
    firstCard(diff),
    agreements(diff),
    lines(SAID, "diff-said"),
  );
}

function firstCard(diff, where = "") {
  const row = firstBeyond(diff);
  if (!row) return null;
  const name = button({ class: "place" }, () => select(row.fqn, "diff", row), row.fqn || "(model)");
  const kind = tensorKind(diff, row);
  const what = [where, row.type, Object.hasOwn(WHAT, kind) ? WHAT[kind] : null, row.path, row.call ? `call ${row.call}` : null].filter(Boolean);
  const times = num(row.times) ?? MANY;
  const facts = [what.join(" · "), row.differs, times < MANY && `${number(times)} times the tolerance`].filter(Boolean);
  return h("div", { class: "diff-first" }, h("strong", {}, "First divergence"), name, facts.map((fact) => h("span", {}, fact)));
}

function agreements(diff) {
  if (isOverSteps(diff)) return null;
  const groups = Map.groupBy(diff.rows, agreement);
  const found = Object.keys(AGREEMENTS).filter((state) => groups.has(state));
  return h("ul", { class: "diff-legend", "aria-label": "Rows by agreement" }, found.map((state) => h("li", {}, h("span", { class: `diff-swatch diff-${state}` }), `${count(groups.get(state).length)} ${AGREEMENTS[state]}`)));
}

function howJudged({ meta: { rtol, atol, of, a } }) {
  const given = (rtol ?? null) !== null ? `rtol is ${number(num(rtol))}, as given` : "rtol is the square root of the dtype's epsilon, so that half of its digits agree: 3.5e-4 for float32, 0.031 for float16, 0.088 for bfloat16; for gradients ten times that";
  const absolute = (atol ?? null) !== null ? `, and atol ${number(num(atol))}` : "";
  const rule = of || a?.record
    ? "Each statistic may differ by as much as it would if every element moved by rtol times the root mean square of A's elements. Shapes, dtypes and counts of NaN and Inf must be equal."
    : "A tensor is beyond tolerance if the l2 norm of its difference, relative to the norm of A's tensor, is above rtol.";
  const steps = a?.record ? ["All steps that both records have are compared up to the first difference, then some of the others."] : [];
  return [`${rule} Here ${given}${absolute}.`, ...steps, "Excess is the difference in units of what is allowed: above 1 it is beyond tolerance.", "The first divergence is the first in the order of execution: a part comes before the module that contains it."];
}

/** Mount the pane; it follows the selection. */
export function mountDiffDetail(container, { comparison }) {
  const root = h("div", { class: "detail", "aria-live": "polite" });
  container.append(root);
  const show = ({ fqn, row }) => root.replaceChildren(...diffParts(comparison, fqn, row));
  onSelect(show);
  show(selected());
}

function diffParts(comparison, fqn, chosen) {
  if (fqn === null) return [h("p", { class: "detail-none" }, "Select a row or a point to see both sides.")];
  const found = comparison.parts.flatMap((part) => part.rows.filter((row) => isAt(row, fqn)).map((row) => ({ part, row })));
  found.sort((one, other) => (other.row === chosen) - (one.row === chosen));
  const first = found[0]?.row;
  const type = [first?.type, first?.change, first?.reset].filter(Boolean).join(" · ");
  const more = found.length > MOST_ROWS ? [h("p", { class: "detail-note" }, `and ${found.length - MOST_ROWS} more`)] : [];
  return [detailName(fqn, type), ...found.slice(0, MOST_ROWS).flatMap(({ part, row }) => rowParts(comparison, part, row)), ...more, ...callsOfSides(comparison, fqn, first)];
}

/** True for rows of the module, and of its own parameters and buffers. */
function isAt(row, fqn) {
  if (row.fqn === fqn) return true;
  return ["grad", "weight", "parameter"].includes(row.kind) && ownerOf(String(row.fqn)) === fqn;
}

function rowParts(comparison, part, row) {
  const place = [part.title, row.path, row.call ? `call ${row.call}` : ""].filter(Boolean).join(" · ");
  const state = agreement(row);
  const excess = num(row.times) === null ? "" : `, excess ${number(num(row.times))}`;
  const own = ownRows(comparison, part.diff, row);
  const columns = ["A", "B"].map((side, i) => [side, own[i]]).filter(([, each]) => each && "l2" in each);
  return [
    h("h3", { class: "detail-title" }, place),
    h("p", { class: `diff-${state}` }, `${AGREEMENTS[state]}${excess}`, row.differs ? h("span", {}, `: ${row.differs}`) : null),
    distances(part.diff, row),
    columns.length ? statisticsTable(columns) : null,
    ...columns.filter(([, each]) => each.hist).map(([side, each]) => histogram(each, side)),
  ].filter(Boolean);
}

function distances(diff, row) {
  const measured = columnsOf([diff]).filter(({ name, about }) => about === "distance" && num(row[name]) !== null);
  return measured.length ? h("p", { class: "diff-dim" }, phrases(measured.map((column) => `${spoken(column)} ${cell(row, column)}`))) : null;
}

function callsOfSides({ a, b }, fqn, row) {
  const names = { a: fqn, b: row ? nameInB(row) : fqn };
  return [a, b].flatMap((side) => {
    const module = side.model.byFqn.get(names[side.label]);
    const table = module && callsTable(module);
    return detailSection(`Shapes and costs in ${side.label.toUpperCase()}`, table);
  });
}
