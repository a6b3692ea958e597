// The steps that a record's page has in full: what the pane beside the views shows of the chosen module.

import { h } from "./dom.js";
import { count } from "./format.js";
import { joinReports } from "./model.js";
import { repeatSelection } from "./selection.js";

/** Joins the reports of one step in the context's model. */
export class StepDetail {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    this.shown = null;
    this.note = h("p", { class: "detail-step" });
    document.getElementById("detail")?.prepend(this.note);
  }

  /** Show the chosen step if the page has it in full, else the track's last step. */
  show(track, index) {
    const own = this.context.payload.reports.filter(({ model, meta }) => model === track.model && meta.phase === track.phase && meta.step !== undefined);
    const exact = own.filter(({ meta }) => meta.step === track.steps[index] && (meta.forward ?? null) === (track.forwards[index] ?? null));
    const last = own.filter(({ meta }) => meta.step === own.at(-1).meta.step && meta.forward === own.at(-1).meta.forward);
    const reports = exact.length ? exact : last;
    const why = exact.length ? "" : ` (the page has no details of step ${count(track.steps[index])})`;
    this.note.textContent = reports.length ? `Step ${count(reports[0].meta.step)} of ${track.title}${why}` : "";
    if (reports[0] === this.shown) return;
    this.shown = reports[0];
    Object.assign(this.context.model, joinReports({ reports }));
    repeatSelection();
  }
}
