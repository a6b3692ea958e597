// The views of a page. Each has a tab, which is there if the payload has what the view needs.

import { hasDepth, mountDepth } from "./depth.js";
import { hasDiffDepth, mountDiffDepth } from "./diff_depth.js";
import { excessOfModules } from "./diff_model.js";
import { mountDiffSteps } from "./diff_steps.js";
import { mountDiffPart } from "./diff_table.js";
import { mountPicture } from "./picture.js";
import { mountModules, mountParameters, mountReport } from "./report_table.js";
import { mountSkipped } from "./skipped.js";
import { mountSteps } from "./steps.js";
import { mountTimeline } from "./timeline.js";

/**
 * @typedef {Object} Context
 * @property {Payload} payload
 * @property {Model} model
 * @property {() => "light"|"dark"} theme
 *
 * @typedef {Object} Mounted each may be absent
 * @property {() => void} [show] the view has become visible
 * @property {() => void} [resize] its size has changed
 * @property {() => void} [retheme] the theme has changed
 * @property {(whole: boolean) => void} [print] draw all of it, for paper; or only what is in sight again
 *
 * @typedef {Object} ViewKind
 * @property {string} id stable: the tab is #tab-ID, its panel #view-ID
 * @property {string} title
 * @property {(context: Context) => boolean} applies
 * @property {(container: HTMLElement, context: Context) => Mounted} mount called when the tab is first shown
 * @property {(context: Context) => number} [count] shown beside the title
 */

/** @type {ViewKind[]} before the tabs of single reports: the first that applies is shown when the page opens */
const FIRST = [
  { id: "steps", title: "Steps", applies: ({ payload }) => Boolean(payload.steps), mount: mountSteps },
  { id: "memory", title: "Over the step", applies: ({ payload }) => timelineOf(payload) !== undefined, mount: (container, { payload }) => mountTimeline(container, timelineOf(payload)) },
  { id: "modules", title: "Modules", applies: isModel, mount: mountModules, count: ({ model }) => model.modules.length },
  { id: "picture", title: "Picture", applies: ({ model }) => flowOf(model).length > 0, mount: mountPicture },
  { id: "parameters", title: "Parameters", applies: (context) => isModel(context) && context.model.parameters.length > 0, mount: mountParameters, count: ({ model }) => model.parameters.length },
];
/** @type {ViewKind[]} after them */
const LAST = [
  { id: "depth", title: "Through depth", applies: (context) => !context.comparison && hasDepth(context), mount: mountDepth },
  { id: "skipped", title: "Not measured", applies: ({ model }) => model.skipped.length > 0, mount: mountSkipped, count: ({ model }) => model.skipped.length },
];

/** The rows of the flow of tensors, of which the picture is drawn. */
function flowOf(model) {
  return model.reports("flow")[0]?.rows ?? [];
}

/** A timeline of memory that has moments, if there is one. */
function timelineOf({ reports }) {
  return reports.find((report) => report.grouping === "moments" && report.rows.length);
}

function isModel({ payload, model }) {
  return payload.kind === "model" && model.modules.length > 0;
}

/** The views of this page; a record has one, which shows all of it. */
export function viewsOf(context) {
  if (context.payload.steps) return FIRST.slice(0, 1);
  if (context.comparison) return [...diffViews(context), ...LAST].filter((view) => view.applies(context));
  return [...FIRST, ...reportViews(context), ...LAST].filter((view) => view.applies(context));
}

/** The views of a comparison: a tab for each kind of tensor, for what both sides' figures show, and for each side. */
function diffViews({ comparison }) {
  const { parts, history, a, b } = comparison;
  const tables = parts.map((part, i) => ({ id: `diff-${i}`, title: part.title, applies: () => true, mount: (container) => mountDiffPart(container, part), count: () => part.rows.length }));
  const alone = [a, b].map((side) => ({
    id: `side-${side.label}`, title: `${side.label.toUpperCase()} alone`, applies: () => side.model.modules.length > 0, count: () => side.model.modules.length,
    mount: (container, context) => mountModules(container, { ...context, model: side.model }),
  }));
  const steps = { id: "steps", title: "Over steps", applies: () => history.length > 0, mount: (container, { payload }) => mountDiffSteps(container, history, payload.charted) };
  const depth = { id: "depth", title: "Through depth", applies: hasDiffDepth, mount: mountDiffDepth };
  return [...tables, ...diffPictures(comparison), steps, depth, ...alone];
}

/** The picture of the architecture, coloured by excess: one, or one of each side where they are wired otherwise. */
function diffPictures(comparison) {
  const [wiredA, wiredB] = [comparison.a, comparison.b].map(({ model }) => JSON.stringify(flowOf(model).map(({ fqn, type, inputs }) => [fqn, type, inputs])));
  const sides = wiredA === wiredB ? [comparison.b] : [comparison.a, comparison.b];
  return sides.map(({ label, model }) => ({
    id: `picture-${label}`, title: sides.length > 1 ? `Picture of ${label.toUpperCase()}` : "Picture", applies: () => flowOf(model).length > 0,
    mount: (container, context) => mountPicture(container, { ...context, model, excess: excessOfModules(comparison, label) }),
  }));
}

/** A tab for each report of a page that joins none. */
function reportViews({ payload }) {
  const probes = payload.reports.map((report) => report.probe);
  return payload.reports.map((report, i) => {
    const which = probes.indexOf(report.probe) === probes.lastIndexOf(report.probe) ? "" : ` ${probes.slice(0, i + 1).filter((probe) => probe === report.probe).length}`;
    const title = `${report.probe[0]?.toUpperCase() ?? ""}${report.probe.slice(1)}${which}`;
    return { id: `report-${i}`, title, applies: () => payload.kind === "reports", mount: (container, context) => mountReport(container, context, report, payload.lines[i]), count: () => report.rows.length };
  });
}
