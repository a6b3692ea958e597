// The top of a comparison, with its verdict and first divergence; and the pane beside it, on the chosen place.

import { SHOWN } from "./data.js";
import { columnsOf, spoken } from "./declared.js";
import { callsTable, detailName, detailSection, statisticsTable } from "./detail.js";
import { button, h, phrases } from "./dom.js";
import { cell, num, number } from "./format.js";
import { histogram } from "./histogram.js";
import { ownerOf } from "./names.js";
import { onSelect, select, selected } from "./selection.js";

const MOST_ROWS = 8; // with their figures at once

/** Mount the summary of the comparisons. */
export function mountDiffSummary(container, { payload, comparison }) {
  const { diffs, verdicts, settings, sizes, how } = comparison;
  const firsts = verdicts.map(({ first }, i) => first && diffs[i].rows[first.row]);
  const first = firsts.find(Boolean) ?? diffs.flatMap(({ rows }) => rows).find((row) => row.reset);
  if (first) select(first.fqn, "diff", first);
  const next = payload.lines.find((lines, i) => lines.next && diffs.includes(payload.reports[i]))?.next;
  container.append(h(
    "div", { class: "diff" },
    verdicts.map((verdict, i) => (verdict.text === null ? firstCard(verdict, firsts[i]) : diffSummary(verdict, firsts[i]))),
    settings.length > 0 && h("p", { class: "diff-dim" }, "The runs differ: ", phrases(settings)),
    sizes.length > 0 && h("p", { class: "diff-dim" }, phrases(sizes)),
    next && h("p", { class: "diff-dim" }, next),
    h("details", { class: "diff-how" }, h("summary", {}, "How differences are judged"), how.map((text) => h("p", {}, text))),
  ));
}

function diffSummary(verdict, row) {
  const { text, tone, above, below, agreements } = verdict;
  const lines = (list) => list.map(([look, line]) => h("p", { class: `diff-${look}` }, line));
  const counts = agreements?.map(([state, count]) => h("li", {}, h("span", { class: `diff-swatch diff-${state}` }), count));
  return h(
    "section", { class: "diff-one" },
    h("p", { class: `verdict ${tone}`.trim() }, tone && h("span", { class: "lamp", "aria-hidden": "true" }), text),
    lines(above),
    firstCard(verdict, row),
    counts && h("ul", { class: "diff-legend", "aria-label": "Rows by agreement" }, counts),
    lines(below),
  );
}

function firstCard({ first }, row) {
  if (!row) return null;
  const name = button({ class: "place" }, () => select(row.fqn, "diff", row), row.fqn || "(model)");
  return h("div", { class: "diff-first" }, h("strong", {}, "First divergence"), name, first.facts.map((fact) => h("span", {}, fact)));
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
  const isOwn = (row) => ["grad", "weight", "parameter"].includes(row.kind) && ownerOf(String(row.fqn)) === fqn; // parameters and buffers
  const found = comparison.parts.flatMap((part) => part.rows.filter((row) => row.fqn === fqn || isOwn(row)).map((row) => ({ part, row })));
  found.sort((one, other) => (other.row === chosen) - (one.row === chosen));
  const first = found[0]?.row;
  const type = [first?.type, first?.change, first?.reset].filter(Boolean).join(" · ");
  const more = found.length > MOST_ROWS ? [h("p", { class: "detail-note" }, `and ${found.length - MOST_ROWS} more`)] : [];
  return [detailName(fqn, type), ...found.slice(0, MOST_ROWS).flatMap(({ part, row }) => rowParts(comparison, part, row)), ...more, ...callsOfSides(comparison, fqn, first)];
}

function rowParts(comparison, part, row) {
  const place = [part.title, row.path, row.call ? `call ${row.call}` : ""].filter(Boolean).join(" · ");
  const { agreement, own } = row[SHOWN];
  const excess = num(row.times) === null ? "" : `, excess ${number(num(row.times))}`;
  const distances = columnsOf([part.diff]).filter(({ name, about }) => about === "distance" && num(row[name]) !== null);
  const columns = ["A", "B"].map((side, i) => [side, own[i]]).filter(([, each]) => each && "l2" in each);
  return [
    h("h3", { class: "detail-title" }, place),
    h("p", { class: `diff-${agreement}` }, `${comparison.agreements[agreement]}${excess}`, row.differs ? h("span", {}, `: ${row.differs}`) : null),
    distances.length ? h("p", { class: "diff-dim" }, phrases(distances.map((column) => `${spoken(column)} ${cell(row, column)}`))) : null,
    columns.length ? statisticsTable(columns) : null,
    ...columns.filter(([, each]) => each.hist).map(([side, each]) => histogram(each, side)),
  ].filter(Boolean);
}

function callsOfSides({ a, b }, fqn, row) {
  return [[a, fqn], [b, row ? row[SHOWN].in_b : fqn]].flatMap(([{ label, model }, name]) => {
    const module = model.byFqn.get(name);
    return detailSection(`Shapes and costs in ${label.toUpperCase()}`, module && callsTable(module));
  });
}
