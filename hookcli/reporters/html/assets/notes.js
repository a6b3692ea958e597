// The lines around a report's table: the run, its totals, remarks and the command to type next.

import { h } from "./dom.js";

/** Lines below the table of one report; one that is `alone` has its run in the header. */
export function reportNotes({ run, totals, remarks, next }, alone) {
  const said = [...totals, ...remarks];
  const lines = [...said.map((line) => h("p", {}, line)), alone ? null : h("p", { class: "dim" }, run), next ? h("p", { class: "next" }, next) : null];
  return h("footer", { class: "notes" }, lines);
}

/** The remarks of all reports of a page that joins them, folded; nothing without any. */
export function mountNotes(container, { payload }) {
  const remarks = [...new Set(payload.lines.flatMap((lines) => lines.remarks))];
  if (payload.kind === "reports" || !remarks.length) return;
  const title = remarks.length === 1 ? "1 note on how to read the figures" : `${remarks.length} notes on how to read the figures`;
  container.append(h("details", { class: "remarks" }, h("summary", {}, title), remarks.map((line) => h("p", {}, line))));
}
