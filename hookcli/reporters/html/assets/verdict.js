// The verdict of the checks, with a line for each check that found something; notes; and the list of what was not measured.

import { h, longList } from "./dom.js";
import { count } from "./format.js";
import { placeButton } from "./selection.js";

const PLACES = 20; // findings of one check that are shown at first
const NAMES = 30; // not measured for one reason, that are shown at first
const WORST = ["error", "warning", "info"];

/** Mount the verdict; nothing without checks. */
export function mountVerdict(container, { payload, model }) {
  const at = payload.reports.findIndex((report) => "checks" in report.totals && "errors" in report.totals);
  const told = new Map(payload.lines.map(({ verdict, alarms }) => [verdict, alarms])); // once, though several reports say it
  const said = at < 0 ? [...told].filter(([verdict]) => verdict) : []; // the checks' verdict says more
  said.forEach(([verdict, alarms]) => container.append(h("p", { class: alarms ? "verdict error" : "verdict" }, verdict)));
  if (at < 0 && !model.findings.length) return;
  const worst = WORST.find((severity) => model.findings.some((finding) => finding.severity === severity));
  const line = at < 0 ? `${model.findings.length} findings` : (payload.lines[at].totals[0] ?? "");
  container.append(h("p", { class: `verdict ${worst ?? "good"}` }, h("span", { class: "lamp", "aria-hidden": "true" }), line));
  const sorted = model.findings.toSorted((a, b) => WORST.indexOf(a.severity) - WORST.indexOf(b.severity));
  const groups = Map.groupBy(sorted, (finding) => finding.check);
  const open = groups.size === 1;
  const item = ({ fqn, message, cause }) => {
    const followed = cause ? h("span", { class: "remedy" }, ` (may follow from ${cause}: fix that first)`) : null;
    return h("li", {}, placeButton(fqn, model.owner(fqn)?.fqn ?? fqn, "verdict"), h("span", {}, message), followed);
  };
  container.append(h("div", { class: "findings" }, [...groups].map(([id, findings]) => checkGroup(id, findings, payload.explain?.[id], open, item))));
}

function checkGroup(id, findings, explanation, open, item) {
  const { severity } = findings[0];
  const places = findings.length === 1 ? findings[0].fqn || "(model)" : `${count(findings.length)} places`;
  const head = h(
    "summary", {},
    h("span", { class: `badge ${severity}` }, severity),
    h("strong", {}, id),
    explanation ? h("span", {}, explanation.name) : null,
    h("span", { class: "places" }, places),
    h("span", { class: "summary" }, findings[0].message),
  );
  const distinct = new Set(findings.map((finding) => finding.remedy).filter(Boolean)); // findings of one check mostly share it
  const otherwise = findings.some((finding) => finding.cause) ? "Else" : "Try";
  const remedies = [...distinct].map((remedy) => h("p", { class: "remedy" }, `${otherwise}: ${remedy}`));
  const body = h("div", { class: "finding-body" }, longList({ class: "place-list" }, findings, PLACES, item), remedies, explained(explanation));
  return h("details", { class: "finding-group", open, "data-check": id }, head, body);
}

function explained(explanation) {
  if (!explanation) return null;
  const [first, ...conditions] = explanation.text.split("\n\n").map((text) => h("p", {}, text));
  const means = h("p", {}, h("strong", {}, "Usually means: "), explanation.means);
  return h("details", { class: "explanation" }, h("summary", {}, `About ${explanation.name}`), first, means, conditions);
}

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

/** Mount the list of what was not measured, by reason. */
export function mountSkipped(container, { model }) {
  const item = ({ fqn, path, kind }) => {
    const text = `${fqn || "(model)"} ${path}`.trim();
    const owner = kind === "not_judged" ? null : model.owner(fqn);
    return h("li", {}, owner ? placeButton(text, owner.fqn, "skipped") : h("span", { class: "place", title: text }, text));
  };
  const groups = [...Map.groupBy(model.skipped, ({ reason }) => reason)].map(([reason, items]) => {
    const head = h("h2", {}, reason, h("span", { class: "count" }, count(items.length)));
    return h("section", { class: "reason" }, head, longList({ class: "names" }, items, NAMES, item));
  });
  container.append(h("div", { class: "skipped" }, h("p", { class: "lead" }, "An absent row is never a zero: these were not measured."), groups));
}
