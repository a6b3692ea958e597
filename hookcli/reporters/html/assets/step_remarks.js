// What a record says of steps besides figures: findings, notes, parameter groups, and what was not measured.

import { h } from "./dom.js";
import { declared } from "./declared.js";
import { count, figureText, num } from "./format.js";
import { select } from "./selection.js";

const MOST_REMARKS = 100; // of a kind that are listed

/** Sections on the chosen step, and on all steps. */
export function stepRemarks(track, index, onStep) {
  const spans = (one) => spanList(track, one.steps, onStep);
  const now = (one) => one.steps.some(([from, until]) => from <= index && index <= until);
  const finding = (one) => h("li", { class: now(one) ? "remark remark-now" : "remark" }, h("span", { class: `badge ${one.severity}` }, one.check), placeButton(one.fqn), h("span", {}, one.message), spans(one));
  const note = (one) => h("li", { class: now(one) ? "remark remark-now" : "remark" }, h("span", {}, one.text), spans(one));
  const missing = (one) => h("li", { class: now(one) ? "remark remark-now" : "remark" }, placeButton(`${one.fqn} ${one.path ?? ""}`.trim(), one.fqn), h("span", {}, one.reason), spans(one));
  return [
    groupTable(track, index),
    remarkList("Findings of checks", track.findings, finding),
    remarkList("Notes", track.notes, note),
    remarkList("Not measured", track.skipped, missing),
  ].filter(Boolean);
}

function remarkList(title, items, item) {
  const more = items.length > MOST_REMARKS ? h("p", { class: "dim" }, `and ${items.length - MOST_REMARKS} more`) : null;
  return items.length ? h("div", { class: "step-remarks" }, h("h2", {}, title), h("ul", {}, items.slice(0, MOST_REMARKS).map(item)), more) : null;
}

function placeButton(text, fqn = text) {
  return h("button", { type: "button", class: "place", title: text || "(model)", on: { click: () => select(fqn, "remarks") } }, text || "(model)");
}

function spanList(track, spans, onStep) {
  const named = ([from, until]) => (from === until ? count(track.steps[from]) : `${count(track.steps[from])}–${count(track.steps[until])}`);
  const button = (span) => h("button", { type: "button", class: "place", title: "Go to this step", on: { click: () => onStep(span[0]) } }, named(span));
  const every = spans.length === 1 && spans[0][0] === 0 && spans[0][1] === track.steps.length - 1;
  return h("span", { class: "dim" }, every ? "every step" : ["step ", ...spans.slice(0, 6).flatMap((span) => [button(span)]), spans.length > 6 ? ` and ${spans.length - 6} more spans` : ""]);
}

/** The parameter groups at the chosen step. */
function groupTable(track, index) {
  const names = [...new Map(track.groups.flatMap(({ figures }) => figures).map((figure) => [figure.name, figure])).values()].filter(({ name }) => declared(name).charted);
  if (!names.length) return null;
  const figureAt = (group, name) => {
    const figure = group.figures.find((one) => one.name === name);
    return figure ? figureText(declared(name), num(figure.values[index])) : "-";
  };
  const head = h("tr", {}, h("th", { scope: "col" }, "Group"), names.map(({ title }) => h("th", { scope: "col" }, title)));
  const rows = track.groups.map((group) => h("tr", {}, h("th", { scope: "row" }, group.title), names.map(({ name }) => h("td", {}, figureAt(group, name)))));
  return h("div", { class: "step-remarks" }, h("h2", {}, `Optimizer at ${track.stepName(index)}`), h("div", { class: "group-scroller" }, h("table", { class: "group-table" }, h("thead", {}, head), h("tbody", {}, rows))));
}
