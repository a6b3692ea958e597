// The bar that chooses a model and phase, and a step of it.

import { h } from "./dom.js";
import { choice } from "./menu.js";

/** A slider of steps, with buttons for the steps beside it and for the first value that is not finite. */
export class StepBar {
  /** @param {{onTrack: (track: StepTrack) => void, onStep: (index: number) => void}} listeners */
  constructor(tracks, { onTrack, onStep }) {
    this.onStep = onStep;
    this.tracks = h("div", { class: "step-tracks" });
    this.name = h("output", { class: "step-name" });
    this.slider = h("input", { type: "range", min: 0, step: 1, "aria-label": "Step", class: "step-slider" });
    this.slider.addEventListener("input", () => onStep(Number(this.slider.value)));
    const button = (text, title, by) => h("button", { type: "button", class: "button", title, on: { click: () => onStep(Number(this.slider.value) + by) } }, text);
    this.bad = h("button", { type: "button", class: "button step-bad", hidden: true, title: "Go to the first step with values that are not finite" }, "First NaN or Inf");
    this.bad.addEventListener("click", () => onStep(this.firstBad));
    this.root = h("div", { class: "step-bar" }, this.tracks, button("‹", "Step before", -1), this.slider, button("›", "Next step", 1), this.name, this.bad);
    this.list(tracks, onTrack);
  }

  /** Offer these tracks. */
  list(tracks, onTrack, chosen = tracks[0]) {
    this.tracks.hidden = tracks.length < 2;
    const byName = new Map(tracks.map((track) => [track.title, track]));
    const options = [...byName.keys()].map((title) => [title, title, `${byName.get(title).steps.length} recorded steps`]);
    this.tracks.replaceChildren(choice("Model and phase", options, chosen?.title, (title) => onTrack(byName.get(title))).element);
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
