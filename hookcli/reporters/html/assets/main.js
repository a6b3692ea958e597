// Builds the page from its payload. A page of several models shows one at a time, below a bar that has all of them.

import { loadPayload } from "./data.js";
import { button, h } from "./dom.js";
import { mountDetail } from "./detail.js";
import { mountDiffDetail, mountDiffSummary } from "./diff.js";
import { comparisonOf } from "./diff_model.js";
import { mountHeader } from "./header.js";
import { mountTooltip } from "./menu.js";
import { joinReports } from "./model.js";
import { followAddress, forgetSelection, onSelect, select } from "./selection.js";
import { mountTabs } from "./tabs.js";
import { mountNotes, mountVerdict } from "./verdict.js";
import { viewsOf } from "./views.js";

const UNASKED = ["repeat", "address"]; // sources of selections that no person has made just now

start(document.getElementById("app"));

/** Build the page, or say why it can't be. */
async function start(app) {
  try {
    const payload = await loadPayload();
    const names = [...new Set(payload.reports.map((report) => report.model))];
    if (payload.kind === "model" && names.length > 1) buildModels(app, payload, names);
    else build(app, payload);
  } catch (error) {
    app.replaceChildren(h("p", { class: "failure", role: "alert" }, `This page can't be shown: ${error}`));
    throw error;
  }
}

/** Build a bar with what the checks found in each model, and the page of the first that has errors. */
function buildModels(app, payload, names) {
  const container = h("div", { class: "model-page" });
  const show = (chosen) => {
    buttons.forEach((each, i) => each.setAttribute("aria-pressed", String(i === chosen)));
    forgetSelection();
    container.replaceChildren();
    const isOfModel = (_, i) => payload.reports[i].model === names[chosen];
    build(container, { ...payload, title: names[chosen], reports: payload.reports.filter(isOfModel), lines: payload.lines.filter(isOfModel) }); // its document stays whole
  };
  const buttons = names.map((name, i) => {
    const { lamp, judged } = payload.heads[name];
    const sign = h("span", { class: `verdict ${lamp}` }, h("span", { class: "lamp", "aria-hidden": "true" }));
    return button({ "aria-pressed": "false" }, () => show(i), sign, name, h("span", { class: "dim" }, judged));
  });
  app.append(h("nav", { class: "models", "aria-label": "Models" }, buttons), container);
  show(Math.max(names.findIndex((name) => payload.heads[name].lamp === "error"), 0));
}

function build(app, payload) {
  const comparison = comparisonOf(payload);
  const joined = payload.steps ? { reports: [] } : payload; // reports of steps are joined for the chosen step
  const context = { payload, comparison, model: comparison?.a.model ?? joinReports(joined) };
  const header = h("header", { class: "page-head" });
  const verdict = h("section", { class: "verdicts", id: "verdict", "aria-label": "Verdict" });
  const beside = h("aside", { class: "beside", id: "detail", "aria-label": "Selected module", tabindex: 0 });
  const work = h("main", { class: "work" });
  app.append(header, verdict, h("div", { class: "panes" }, work, beside));
  mountHeader(header, payload);
  if (!payload.steps) (comparison ? mountDiffSummary : mountVerdict)(verdict, context); // else findings belong to a step
  if (!payload.steps) mountNotes(verdict, context);
  beside.hidden = !comparison && !context.model.modules.length && !payload.steps?.tracks.length;
  if (!beside.hidden) (comparison ? mountDiffDetail : mountDetail)(beside, context);
  let moved = () => {};
  const tabs = mountTabs(work, viewsOf(context), context, () => moved());
  const faults = payload.steps ? [] : payload.lines.map(({ worst }) => worst).filter(Boolean);
  const worst = ["error", "warning"].map((one) => [...context.model.findings, ...faults].find(({ severity }) => severity === one)).find(Boolean);
  const offender = comparison ? null : worst && context.model.owner(worst.fqn);
  if (offender) select(offender.fqn, "worst");
  else if (!comparison && context.model.byFqn.has("")) select("", "start");
  mountSheet(beside);
  moved = followAddress(tabs, context.model);
  mountTooltip(app);
  for (const whole of [true, false]) addEventListener(whole ? "beforeprint" : "afterprint", () => tabs.shown()?.print?.(whole));
  new ResizeObserver(() => tabs.shown()?.resize?.()).observe(work);
  document.addEventListener("keydown", (event) => searchKey(event, work));
}

/** Where there is no room beside the views, the pane is a sheet that comes from below when a module is chosen. */
function mountSheet(beside) {
  const open = (isOpen) => {
    beside.classList.toggle("open", isOpen);
    handle.setAttribute("aria-expanded", String(isOpen));
  };
  const handle = button({ class: "sheet-handle", "aria-expanded": "false" }, () => open(!beside.classList.contains("open")), "Details of the chosen module");
  beside.append(handle);
  onSelect(({ source, fqn }) => !UNASKED.includes(source) && open(fqn !== null));
}

/** "/" searches, wherever no text is typed. */
function searchKey(event, work) {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const search = [...work.querySelectorAll(".search")].find((each) => each.offsetParent);
  search?.focus();
  if (search) event.preventDefault();
}
