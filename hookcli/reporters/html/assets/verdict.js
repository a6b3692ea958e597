// The verdict of the checks: a line for each check that found something, with its explanation and places folded in.

import { h, longList } from "./dom.js";
import { count } from "./format.js";
import { select } from "./selection.js";

const PLACES = 20; // findings of one check that are shown at first
const WORST = ["error", "warning", "info"];

/** Mount the verdict; nothing without checks. */
export function mountVerdict(container, { payload, model }) {
  const at = payload.reports.findIndex((report) => "checks" in report.totals && "errors" in report.totals);
  const said = payload.reports.map((_, i) => payload.lines[i].verdict).filter(Boolean);
  said.forEach((text) => container.append(h("p", { class: "verdict" }, text)));
  if (at < 0 && !model.findings.length) return;
  const worst = WORST.find((severity) => model.findings.some((finding) => finding.severity === severity));
  const line = at < 0 ? `${model.findings.length} findings` : (payload.lines[at].totals[0] ?? "");
  container.append(h("p", { class: `verdict ${worst ?? "good"}` }, h("span", { class: "lamp", "aria-hidden": "true" }), line));
  const sorted = model.findings.toSorted((a, b) => WORST.indexOf(a.severity) - WORST.indexOf(b.severity));
  const groups = Map.groupBy(sorted, (finding) => finding.check);
  const open = groups.size === 1;
  const place = (finding) => placeItem(finding, model.owner(finding.fqn)?.fqn ?? finding.fqn);
  container.append(h("div", { class: "findings" }, [...groups].map(([id, findings]) => checkGroup(id, findings, payload.explain?.[id], open, place))));
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
  return h("details", { class: "finding-group", open, "data-check": id }, head, h("div", { class: "finding-body" }, longList({ class: "place-list" }, findings, PLACES, item), remedies(findings), explained(explanation)));
}

/** Each remedy once: findings of one check mostly share it. */
function remedies(findings) {
  const distinct = new Set(findings.map((finding) => finding.remedy).filter(Boolean));
  return [...distinct].map((remedy) => h("p", { class: "remedy" }, `${findings.some((finding) => finding.cause) ? "Else" : "Try"}: ${remedy}`));
}

function placeItem(finding, fqn) {
  const place = h("button", { type: "button", class: "place", title: finding.fqn || "(model)", on: { click: () => select(fqn, "verdict") } }, finding.fqn || "(model)");
  return h("li", {}, place, h("span", {}, finding.message), finding.cause ? h("span", { class: "remedy" }, ` (may follow from ${finding.cause}: fix that first)`) : null);
}

/** What a finding may follow from, and what to try. */
export function advice(finding) {
  const cause = finding.cause ? [h("div", { class: "remedy" }, `May follow from ${finding.cause}: fix that first`)] : [];
  const remedy = finding.remedy ? [h("div", { class: "remedy" }, `${finding.cause ? "Else" : "Try"}: ${finding.remedy}`)] : [];
  return [...cause, ...remedy];
}

function explained(explanation) {
  if (!explanation) return null;
  const paragraphs = explanation.text.split("\n\n").map((text) => h("p", {}, text));
  const means = h("p", {}, h("strong", {}, "Usually means: "), explanation.means);
  return h("details", { class: "explanation" }, h("summary", {}, `About ${explanation.name}`), paragraphs, means);
}
