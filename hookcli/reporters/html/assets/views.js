// The views of a page. Each has a tab, which is there if the payload has what the view needs.

import { hasDepth, hasDiffDepth, mountDepth, mountDiffDepth, mountTimeline } from "./depth.js";
import { addedParts } from "./parts.js";
import { mountDiffPart, mountModules, mountParameters, mountReport } from "./report_table.js";
import { mountHistory, mountRuns } from "./runs.js";
import { mountSteps } from "./steps.js";
import { mountSkipped } from "./verdict.js";

/**
 * @typedef {{payload: Payload, comparison: Comparison|null, model: Model}} Context
 *
 * @typedef {Object} Mounted each may be absent
 * @property {() => void} [show] the view has become visible
 * @property {() => void} [resize] its size has changed
 * @property {(whole: boolean) => void} [print] draw all of it, for paper; or only what is in sight again
 *
 * @typedef {Object} ViewKind
 * @property {string} id stable: the tab is #tab-ID, its panel #view-ID
 * @property {string} title
 * @property {(container: HTMLElement, context: Context) => Mounted|void} mount called when the tab is first shown
 * @property {number} [total] of its rows, shown beside the title
 */

/**
 * The views of this page: the first is shown when it opens. A record has one, which shows all of it.
 * @returns {ViewKind[]}
 */
export function viewsOf({ payload, comparison, model }) {
  if (payload.steps) return [{ id: "steps", title: "Steps", mount: mountSteps }];
  if (payload.reports.some(({ probe }) => probe === "runs")) return [{ id: "runs", title: "Runs", mount: mountRuns }];
  const { modules, parameters, skipped } = model;
  const isModel = payload.kind === "model" && modules.length > 0;
  const timeline = payload.reports.find((report) => report.grouping === "moments" && report.rows.length);
  const before = comparison ? diffViews(comparison, payload.charted) : [
    timeline && { id: "memory", title: "Over the step", mount: (container) => mountTimeline(container, timeline) },
    isModel && { id: "modules", title: "Modules", mount: mountModules, total: modules.length },
    ...addedParts.map((part) => sound(part, model)).map((part) => part.drawn(model).length && part),
    isModel && parameters.length && { id: "parameters", title: "Parameters", mount: mountParameters, total: parameters.length },
    ...(payload.kind === "reports" ? reportViews(payload) : []),
    hasDepth(model) && { id: "depth", title: "Through depth", mount: mountDepth },
  ];
  return [...before, skipped.length && { id: "skipped", title: "Not measured", mount: mountSkipped, total: skipped.length }].filter(Boolean);
}

/** The views of a comparison: a tab for each kind of tensor, for what both sides' figures show, and for each side. */
function diffViews(comparison, charted) {
  const { parts, history, a, b } = comparison;
  const curves = history.some(({ rows }) => rows.length); // two runs: first of all how they went
  return [
    curves && { id: "steps", title: "Curves", mount: (container) => mountHistory(container, history, charted) },
    ...parts.map((part, i) => ({ id: `diff-${i}`, title: part.title, mount: (container) => mountDiffPart(container, part), total: part.rows.length })),
    ...addedParts.flatMap((part) => comparedParts(sound(part, comparison.a.model, comparison.b.model), comparison)),
    hasDiffDepth(comparison) && { id: "depth", title: "Through depth", mount: mountDiffDepth },
    ...[a, b].map(({ label, model }) => model.modules.length && {
      id: `side-${label}`, title: `${label.toUpperCase()} alone`, total: model.modules.length,
      mount: (container, context) => mountModules(container, { ...context, model }),
    }),
  ];
}

/** A capability's part; one that can't tell what it draws of these models has a view that says why. */
function sound(part, ...models) {
  try {
    models.forEach((model) => part.drawn(model).length);
    return part;
  } catch (error) {
    return { ...part, drawn: () => ["nothing"], mount() { throw error; } };
  }
}

/** A capability's part, with the excess of each module: one, or one of each side where what is drawn differs. */
function comparedParts(part, comparison) {
  const [drawnA, drawnB] = [comparison.a, comparison.b].map(({ model }) => JSON.stringify(part.drawn(model)));
  const sides = drawnA === drawnB ? [comparison.b] : [comparison.a, comparison.b];
  return sides.filter(({ model }) => part.drawn(model).length).map(({ label, model, excess }) => ({
    id: `${part.id}-${label}`, title: sides.length > 1 ? `${part.title} of ${label.toUpperCase()}` : part.title,
    mount: (container, context) => part.mount(container, { ...context, model, excess }),
  }));
}

/** A tab for each report of a page that joins none; reports of one probe are numbered. */
function reportViews({ reports, lines }) {
  const groups = Map.groupBy(reports, ({ probe }) => probe);
  return reports.map((report, i) => {
    const { probe, rows } = report;
    const alike = groups.get(probe);
    const number = alike.length > 1 ? ` ${alike.indexOf(report) + 1}` : "";
    const title = `${probe.slice(0, 1).toUpperCase()}${probe.slice(1)}${number}`;
    return { id: `report-${i}`, title, mount: (container, context) => mountReport(container, context, report, lines[i]), total: rows.length };
  });
}
