// What a record says besides its figures: its first value that is not finite, its ranks; and remarks on steps.

import { declared } from "./declared.js";
import { button, h } from "./dom.js";
import { count, counted, figureText, num } from "./format.js";
import { mountReport } from "./report_table.js";
import { placeButton } from "./selection.js";

const NO_LINES = { verdict: "", run: "", totals: [], remarks: [], next: "" }; // around the table of a report
const MOST_REMARKS = 100; // of a kind that are listed
const MOST_SPANS = 6; // of steps, that a remark names

/**
 * The first value that was not finite, with the rows before it; null without any.
 * @param {Object<string, any>} steps of the payload
 */
export function firstBadSection(context, steps, goTo) {
  const [found] = steps.non_finite;
  if (!found) return null;
  const { steps: recorded = [found.step] } = steps.tracks.find(({ model, phase }) => model === found.model && phase === found.phase) ?? {};
  const step = recorded.find((each) => each >= found.step) ?? recorded.at(-1); // its own may not be recorded
  const go = button({}, () => goTo({ ...found, step }), `Go to ${found.fqn || "the model"} at step ${count(step)}`);
  const about = h("summary", {}, "Rows before it, in the order in which they were measured; its own is the last one");
  const tables = found.reports.map((place) => reportBox(context, context.payload.reports[place]));
  const rows = tables.length ? h("details", { class: "first-bad-rows", open: true }, about, tables) : null;
  const later = steps.non_finite.length > 1 ? h("p", { class: "dim" }, `and on ${counted(steps.non_finite.length - 1, "other rank")}`) : null;
  return h("section", { class: "first-bad", "aria-label": "First value that is not finite" }, h("p", {}, h("strong", {}, found.line)), later, h("div", {}, go), rows);
}

/** The table of ranks, with remarks on missing and deviating ones; null for a record of one process. */
export function ranksSection(context, { ranks }) {
  if (!ranks) return null;
  const missing = ranks.missing.length ? h("p", { class: "failure" }, `Missing: ${ranks.missing.map((rank) => `rank ${rank}`).join(", ")}`) : null;
  return h("section", { class: "step-section", "aria-label": "Ranks" }, h("h2", {}, "Ranks"), missing, ranks.table.map((report) => reportBox(context, report)));
}

function reportBox(context, report) {
  const box = h("div", { class: "report-box" });
  mountReport(box, context, report, NO_LINES);
  return box;
}

/** Sections on the chosen step, and on all steps. */
export function stepRemarks(track, index, onStep) {
  const section = (title, items, parts) => {
    const isNow = ({ steps }) => steps.some(([from, until]) => from <= index && index <= until);
    const item = (one) => h("li", { class: isNow(one) ? "remark remark-now" : "remark" }, parts(one), spanList(track, one.steps, onStep));
    const more = items.length > MOST_REMARKS ? h("p", { class: "dim" }, `and ${items.length - MOST_REMARKS} more`) : null;
    return items.length ? h("div", { class: "step-remarks" }, h("h2", {}, title), h("ul", {}, items.slice(0, MOST_REMARKS).map(item)), more) : null;
  };
  const badge = ({ severity, check }) => h("span", { class: `badge ${severity}` }, check);
  return [
    groupTable(track, index),
    section("Findings of checks", track.findings, (one) => [badge(one), placeButton(one.fqn, one.fqn, "remarks"), h("span", {}, one.message)]),
    section("Notes", track.notes, (one) => h("span", {}, one.text)),
    section("Not measured", track.skipped, ({ fqn, path, reason }) => [placeButton(`${fqn} ${path ?? ""}`.trim(), fqn, "remarks"), h("span", {}, reason)]),
  ].filter(Boolean);
}

function spanList(track, spans, onStep) {
  const [first, last] = spans[0];
  if (spans.length === 1 && first === 0 && last === track.steps.length - 1) return h("span", { class: "dim" }, "every step");
  const named = ([from, until]) => (from === until ? count(track.steps[from]) : `${count(track.steps[from])}–${count(track.steps[until])}`);
  const buttons = spans.slice(0, MOST_SPANS).map((span) => button({ class: "place", title: "Go to this step" }, () => onStep(span[0]), named(span)));
  return h("span", { class: "dim" }, "step ", buttons, spans.length > MOST_SPANS ? ` and ${spans.length - MOST_SPANS} more spans` : "");
}

/** The parameter groups at the chosen step. */
function groupTable(track, index) {
  const columns = [...new Map(track.groups.flatMap(({ figures }) => figures).map((figure) => [figure.name, figure])).values()].filter(({ name }) => declared(name).charted);
  if (!columns.length) return null;
  const figureAt = ({ figures }, name) => {
    const figure = figures.find((one) => one.name === name);
    return figure ? figureText(declared(name), num(figure.values[index])) : "-";
  };
  const head = h("tr", {}, h("th", { scope: "col" }, "Group"), columns.map(({ title }) => h("th", { scope: "col" }, title)));
  const rows = track.groups.map((group) => h("tr", {}, h("th", { scope: "row" }, group.title), columns.map(({ name }) => h("td", {}, figureAt(group, name)))));
  const table = h("table", { class: "group-table" }, h("thead", {}, head), h("tbody", {}, rows));
  return h("div", { class: "step-remarks" }, h("h2", {}, `Optimizer at ${track.stepName(index)}`), h("div", { class: "group-scroller" }, table));
}
