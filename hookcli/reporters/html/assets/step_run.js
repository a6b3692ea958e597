// A record as a whole: what ran and how it ended, the first value that is not finite, and the table of ranks.

import { h } from "./dom.js";
import { count, counted, fixed, seconds } from "./format.js";
import { mountReport } from "./report_table.js";

const NO_LINES = { verdict: "", run: "", totals: [], remarks: [], next: "" }; // around the table of a report

/**
 * What is said of the run: pairs of a name and a text, for the header.
 * @param {Object<string, any>} steps of the payload
 */
export function recordFacts({ run, tracks, ranks }) {
  const { ended } = run;
  const trained = tracks.filter(({ phase }) => phase === "train").reduce((sum, track) => sum + track.steps.length, 0);
  const others = tracks.reduce((sum, track) => sum + track.steps.length, 0) - trained;
  const recorded = [trained || !others ? counted(trained, "step") : "", others ? `${counted(others, "forward")} without gradients` : ""];
  return [
    ["Command", run.command || run.script || run.record],
    ["Started", run.started ? run.started.replace("T", " ").replace("+00:00", " UTC") : ""],
    ["Took", ended ? `${clockText(ended.seconds)}${ended.program_steps ? ` for ${counted(ended.program_steps, "step")}` : ""}` : ""],
    ["Ended", endText(ended)],
    ["Recorded", `${recorded.filter(Boolean).join(" and ")}${run.every > 1 ? `, every ${count(run.every)}th` : ""}`],
    ["hookcli's part", ended?.hookcli_seconds ? `${clockText(ended.hookcli_seconds)} (${fixed((100 * ended.hookcli_seconds) / ended.seconds, 0)}%)` : ""],
    ["Ranks", ranks ? count(ranks.number) : ""],
    ["Models", run.models.map((model) => `${model.model} (${count(model.parameters)} parameters)`).join(", ")],
    ["Versions", Object.entries(run.versions).filter(([name]) => name !== "hookcli").map((pair) => pair.join(" ")).join(", ")],
  ].filter(([, text]) => text);
}

function endText(ended) {
  if (!ended) return "no end is recorded (running, or killed)";
  const code = ended.exit_code === null ? "" : `exit code ${ended.exit_code}`;
  return ended.error ? `${ended.error}${code ? ` (${code})` : ""}` : code || "by itself";
}

/** A time that a person waited: 4.2 s, 3 min 20 s, 2 h 5 min. */
function clockText(time) {
  if (time < 100) return time < 1 ? seconds(time) : `${fixed(time, 1)} s`;
  const [minutes, rest] = [Math.floor(Math.round(time) / 60), Math.round(time) % 60];
  return minutes < 60 ? `${minutes} min ${rest} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Notes on the run, and on what the record lacks; empty if there are none. */
export function recordNotes({ run, remarks, digits, tracks }) {
  const models = run.models.flatMap((model) => model.notes.map((note) => `${model.model}: ${note}`));
  const rounded = digits < 4 && tracks.length ? [`figures of modules are rounded to ${digits} digits, since there are so many`] : [];
  const said = [...new Set([...remarks, ...(run.ended?.notes ?? []), ...models, ...rounded])];
  return said.length ? h("ul", { class: "record-notes" }, said.map((text) => h("li", {}, text))) : "";
}

/**
 * The first value that was not finite, with the rows before it; null without any.
 * @param {Object<string, any>} steps of the payload
 */
export function firstBadSection(context, steps, goTo) {
  const [found] = steps.non_finite;
  if (!found) return null;
  const go = h("button", { type: "button", class: "button", on: { click: () => goTo(found) } }, `Go to ${found.fqn || "the model"} at step ${count(found.step)}`);
  const rows = h("details", { class: "first-bad-rows", open: true }, h("summary", {}, "Rows before it, in the order in which they were measured; its own is the last one"));
  const tables = found.reports.map((place) => reportBox(context, context.payload.reports[place]));
  rows.append(...tables);
  const later = steps.non_finite.length > 1 ? h("p", { class: "dim" }, `and on ${counted(steps.non_finite.length - 1, "other rank")}`) : null;
  return h("section", { class: "first-bad", "aria-label": "First value that is not finite" }, h("p", {}, h("strong", {}, found.line)), later, h("div", {}, go), found.reports.length ? rows : null);
}

/** The table of ranks, with remarks on missing and deviating ones; null for a record of one process. */
export function ranksSection(context, { ranks }) {
  if (!ranks) return null;
  const missing = ranks.missing.length ? h("p", { class: "failure" }, `Missing: ${ranks.missing.map((rank) => `rank ${rank}`).join(", ")}`) : null;
  return h("section", { class: "step-section", "aria-label": "Ranks" }, h("h2", {}, "Ranks"), missing, ranks.table.map((report) => reportBox(context, report)));
}

function reportBox(context, report) {
  const box = h("div", { class: "report-box" });
  box.style.height = `${Math.min(report.rows.length, 12) * 24 + 104}px`;
  mountReport(box, context, report, NO_LINES);
  return box;
}
