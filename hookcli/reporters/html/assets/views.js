// The views of a page. Each has a tab, which is there if the payload has what the view needs.

import { hasDepth, mountDepth } from "./depth.js";
import { mountModules, mountParameters, mountReport } from "./report_table.js";
import { mountSkipped } from "./skipped.js";
import { mountSteps } from "./steps.js";

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
  { id: "modules", title: "Modules", applies: isModel, mount: mountModules, count: ({ model }) => model.modules.length },
  { id: "parameters", title: "Parameters", applies: (context) => isModel(context) && context.model.parameters.length > 0, mount: mountParameters, count: ({ model }) => model.parameters.length },
];
/** @type {ViewKind[]} after them */
const LAST = [
  { id: "depth", title: "Through depth", applies: hasDepth, mount: mountDepth },
  { id: "skipped", title: "Not measured", applies: ({ model }) => model.skipped.length > 0, mount: mountSkipped, count: ({ model }) => model.skipped.length },
];

function isModel({ payload, model }) {
  return payload.kind === "model" && model.modules.length > 0;
}

/** The views of this page. */
export function viewsOf(context) {
  return [...FIRST, ...reportViews(context), ...LAST].filter((view) => view.applies(context));
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
