// The chosen step: the bar that chooses it, and what the pane beside the views shows of the chosen module.

import { button, h } from "./dom.js";
import { count } from "./format.js";
import { choice } from "./menu.js";
import { joinReports } from "./model.js";
import { repeatSelection } from "./selection.js";

/** A slider of steps, with buttons for the steps beside it and for the first value that is not finite. */
export class StepBar {
  /** @param {{onTrack: (track: StepTrack) => void, onStep: (index: number) => void}} listeners */
  constructor(tracks, { onTrack, onStep }) {
    this.onTrack = onTrack;
    this.tracks = h("div", { class: "step-tracks" });
    this.name = h("output", { class: "step-name" });
    const go = (by) => () => onStep(Number(this.slider.value) + by);
    this.slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "Step", class: "step-slider", on: { input: go(0) } });
    const [before, after] = [button({ title: "Step before" }, go(-1), "‹"), button({ title: "Next step" }, go(1), "›")];
    this.bad = button({ class: "button step-bad", hidden: true, title: "Go to the first step with values that are not finite" }, () => onStep(this.firstBad), "First NaN or Inf");
    this.root = h("div", { class: "step-bar" }, this.tracks, before, this.slider, after, this.name, this.bad);
    this.list(tracks, tracks[0]);
  }

  /** Offer these tracks. */
  list(tracks, chosen) {
    this.tracks.hidden = tracks.length < 2;
    const options = tracks.map(({ title, steps }) => [title, title, `${steps.length} recorded steps`]);
    const choose = (title) => this.onTrack(tracks.find((track) => track.title === title));
    this.tracks.replaceChildren(choice("Model and phase", options, chosen.title, choose).element);
  }

  /** Show a track at a step; `firstBad` is the index of its first step with values that are not finite, -1 without any. */
  show(track, index, firstBad) {
    this.slider.max = String(track.steps.length - 1);
    this.slider.value = String(index);
    this.slider.setAttribute("aria-valuetext", track.stepName(index));
    const unfinished = track.unfinished.includes(index) ? " (not finished)" : "";
    this.name.textContent = `${track.stepName(index)}${unfinished} · ${index + 1} of ${track.steps.length}`;
    this.firstBad = firstBad;
    this.bad.hidden = firstBad < 0;
  }
}

/** Joins the reports of one step in the context's model; of each track the page has some steps in full. */
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
    const settings = this.context.payload.steps.settings.filter(({ model }) => model === track.model);
    Object.assign(this.context.model, joinReports({ reports: [...reports, ...settings] }));
    repeatSelection();
  }
}
