// The pane beside a comparison: what differs at the chosen place, and both sides' statistics and distributions.

import { h } from "./dom.js";
import { histogram } from "./histogram.js";
import { columnsOf, spoken } from "./declared.js";
import { callsTable, statisticsTable } from "./detail_parts.js";
import { cell, num, number } from "./format.js";
import { ownerOf } from "./names.js";
import { agreement, nameInB, ownRows } from "./diff_model.js";
import { AGREEMENTS } from "./diff.js";
import { onSelect, selected } from "./selection.js";

const MOST = 8; // rows with their figures at once

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
  const type = [first?.type, first?.change].filter(Boolean).join(" · ");
  const head = h("header", { class: "detail-head" }, h("h2", { class: "detail-name" }, fqn || "(model)"), h("span", { class: "detail-type" }, type));
  const more = found.length > MOST ? [h("p", { class: "detail-note" }, `and ${found.length - MOST} more`)] : [];
  return [head, ...found.slice(0, MOST).flatMap(({ part, row }) => rowParts(comparison, part, row)), ...more, ...calls(comparison, fqn, first)];
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
  return measured.length ? h("p", { class: "diff-dim" }, measured.map((column) => `${spoken(column)} ${cell(row, column, true)}`).join(" · ")) : null;
}

function calls({ a, b }, fqn, row) {
  const names = { a: fqn, b: row ? nameInB(row) : fqn };
  return [a, b].flatMap((side) => {
    const module = side.model.byFqn.get(names[side.label]);
    const table = module && callsTable(module);
    return table ? [h("h3", { class: "detail-title" }, `Shapes and costs in ${side.label.toUpperCase()}`), table] : [];
  });
}
