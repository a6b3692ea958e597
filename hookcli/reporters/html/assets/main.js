// Builds the page from its payload.

import { loadPayload } from "./data.js";
import { h } from "./dom.js";
import { mountDetail } from "./detail.js";
import { mountHeader } from "./header.js";
import { joinReports } from "./model.js";
import { mountModels } from "./models.js";
import { mountNotes } from "./notes.js";
import { mountPlace } from "./place.js";
import { mountPrinting } from "./printing.js";
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
  const context = { payload, model: joinReports(payload), theme: theme.current };
  const header = h("header", { class: "page-head" });
  const verdict = h("section", { class: "verdicts", id: "verdict", "aria-label": "Verdict" });
  const beside = h("aside", { class: "beside", id: "detail", "aria-label": "Selected module", tabindex: -1 });
  const work = h("main", { class: "work" });
  app.append(header, verdict, h("div", { class: "panes" }, work, beside));
  mountHeader(header, { ...context, setTheme: theme.set, theme });
  mountVerdict(verdict, context);
  mountNotes(verdict, context);
  beside.hidden = !context.model.modules.length;
  const mounted = beside.hidden ? null : mountDetail(beside, context);
  let moved = () => {};
  const tabs = mountTabs(work, viewsOf(context), context, () => moved());
  if (context.model.byFqn.has("")) select("", "start");
  moved = mountPlace(tabs, context.model);
  mountTooltip(app);
  mountPrinting(tabs.shown);
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
