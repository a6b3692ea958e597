// Builds the page from its payload.

import { loadPayload } from "./data.js";
import { h } from "./dom.js";
import { mountDetail } from "./detail.js";
import { mountDiffSummary } from "./diff.js";
import { mountDiffDetail } from "./diff_detail.js";
import { comparisonOf } from "./diff_model.js";
import { mountHeader } from "./header.js";
import { joinReports } from "./model.js";
import { mountModels } from "./models.js";
import { mountNotes } from "./notes.js";
import { mountPlace } from "./place.js";
import { select } from "./selection.js";
import { mountTabs } from "./tabs.js";
import { themeSwitch } from "./theme.js";
import { mountTooltip } from "./tooltip.js";
import { mountVerdict } from "./verdict.js";
import { viewsOf } from "./views.js";

start(document.getElementById("app"));

/** Build the page, or say why it can't be. */
async function start(app) {
  try {
    mountModels(app, await loadPayload(), build);
  } catch (error) {
    app.replaceChildren(h("p", { class: "failure", role: "alert" }, `This page can't be shown: ${error}`));
    throw error;
  }
}

function build(app, payload) {
  const theme = themeSwitch();
  const comparison = comparisonOf(payload);
  const joined = payload.steps ? { reports: [] } : payload; // those of steps are joined for the step that is chosen
  const context = { payload, comparison, model: comparison?.a.model ?? joinReports(joined), theme: theme.current };
  const header = h("header", { class: "page-head" });
  const verdict = h("section", { class: "verdicts", id: "verdict", "aria-label": "Verdict" });
  const beside = h("aside", { class: "beside", id: "detail", "aria-label": "Selected module", tabindex: 0 });
  const work = h("main", { class: "work" });
  app.append(header, verdict, h("div", { class: "panes" }, work, beside));
  const told = comparison ? { ...payload, reports: comparison.diffs } : payload; // totals of one side would be no facts of both
  mountHeader(header, { ...context, payload: told, setTheme: theme.set, theme });
  if (!payload.steps) (comparison ? mountDiffSummary : mountVerdict)(verdict, context); // else findings are those of a step
  if (!payload.steps) mountNotes(verdict, context);
  beside.hidden = !comparison && !context.model.modules.length && !payload.steps?.tracks.length;
  const mounted = beside.hidden ? null : (comparison ? mountDiffDetail : mountDetail)(beside, context);
  let moved = () => {};
  const tabs = mountTabs(work, viewsOf(context), context, () => moved());
  if (!comparison && context.model.byFqn.has("")) select("", "start");
  moved = mountPlace(tabs, context.model);
  mountTooltip(app);
  for (const whole of [true, false]) addEventListener(whole ? "beforeprint" : "afterprint", () => tabs.shown()?.print?.(whole));
  theme.onChange(() => [mounted, ...tabs.mounted()].forEach((view) => view?.retheme?.()));
  new ResizeObserver(() => [mounted, tabs.shown()].forEach((view) => view?.resize?.())).observe(work);
  document.addEventListener("keydown", (event) => searchKey(event, work));
}

/** "/" searches, wherever no text is typed. */
function searchKey(event, work) {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const search = [...work.querySelectorAll(".search")].find((each) => each.offsetParent);
  search?.focus();
  if (search) event.preventDefault();
}
