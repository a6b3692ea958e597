// A page of several models shows one at a time; a bar above it has all, with what the checks found.

import { h } from "./dom.js";
import { count } from "./format.js";
import { forgetSelection } from "./selection.js";

const SEVERITIES = { errors: "error", warnings: "warning", infos: "info" };

/** Build a page, or for several models a bar and the page of the first that has errors. */
export function mountModels(app, payload, build) {
  const names = [...new Set(payload.reports.map((report) => report.model))];
  if (payload.kind !== "model" || names.length < 2) return build(app, payload);
  const container = h("div", { class: "model-page" });
  const buttons = names.map((name) => modelButton(name, payload, () => show(name)));
  const show = (name) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(names[i] === name)));
    forgetSelection();
    container.replaceChildren();
    build(container, ofModel(payload, name));
  };
  app.append(h("nav", { class: "models", "aria-label": "Models" }, buttons), container);
  show(names.find((name) => totalsOf(name, payload).errors) ?? names[0]);
}

/** What the checks counted. */
function totalsOf(name, payload) {
  return Object.assign({}, ...payload.reports.filter((report) => report.model === name && report.probe === "check").map((report) => report.totals));
}

function modelButton(name, payload, choose) {
  const totals = totalsOf(name, payload);
  const found = Object.entries(SEVERITIES).filter(([key]) => totals[key]);
  const said = found.map(([key, word]) => `${count(totals[key])} ${totals[key] === 1 ? word : key}`).join(", ");
  const lamp = h("span", { class: "lamp", "aria-hidden": "true" });
  return h("button", { type: "button", class: "button", "aria-pressed": "false", on: { click: choose } }, h("span", { class: `verdict ${found[0]?.[1] ?? "good"}` }, lamp), name, h("span", { class: "dim" }, said || "passed"));
}

/** The part of the payload that is of one model; its document stays whole. */
function ofModel(payload, name) {
  const own = payload.reports.map((report) => report.model === name);
  return { ...payload, title: name, reports: payload.reports.filter((_, i) => own[i]), lines: payload.lines.filter((_, i) => own[i]) };
}
