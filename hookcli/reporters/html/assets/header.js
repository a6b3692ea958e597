// The top of the page: what ran, on what, how long, and what hookcli itself cost; totals; theme and saving.

import { chosenTheme, setTheme } from "./color.js";
import { button, h, save } from "./dom.js";
import { bytes, count, fixed, num, number, quantity, seconds } from "./format.js";
import { choice, menu } from "./menu.js";
import { recordFacts, recordNotes } from "./step_remarks.js";

/** Mount the header. */
export function mountHeader(container, payload) {
  const themes = [["", "Auto", "Light or dark as the system has it"], ["light", "Light", "Light"], ["dark", "Dark", "Dark"]];
  const switcher = choice("Theme", themes, chosenTheme, setTheme);
  const saved = button({ id: "save-json", title: "The reports as --format json writes them" }, () => save(`${payload.title}.json`, payload.document), "Save JSON");
  const title = h("h1", {}, payload.title);
  const version = h("span", { class: "brand" }, "hookcli ", payload.hookcli);
  container.append(
    h("div", { class: "title-line" }, title, version, h("div", { class: "page-tools" }, keysMenu(), saved, switcher.element)),
    ...(payload.steps ? [h("div", { class: "record-head", id: "record-head" }, recordHead(payload.steps))] : [factList(facts(payload.reports)), totals(payload)]),
    ...failures(payload.reports),
  );
}

/** The keys, and what can be searched. */
function keysMenu() {
  const keys = [["/", "search"], ["↑ ↓", "select a row"], ["→ ←", "unfold, fold"], ["Home End", "first, last row"], ["Esc", "end the search"]];
  const searches = [["conv -bn", "names and types with conv, without bn"], ["macs>1M", "more than a million"], ["type=Conv2d", "exactly this type"], ["act.zeros>50%", "columns of a group have its prefix"], ["grad.l2=nan", "NaN; =- is a missing value"]];
  const list = (pairs) => h("dl", { class: "keys" }, pairs.map(([key, text]) => [h("dt", {}, key), h("dd", {}, text)]));
  return menu("Keys", [h("div", { class: "menu-heading" }, "Keys"), list(keys), h("div", { class: "menu-heading" }, "Search"), list(searches)]);
}

/** What is said of the run: pairs of a name and a text. */
function facts(reports) {
  const all = (key) => [...new Set(reports.map((report) => report.meta[key]).filter((value) => (value ?? "") !== "").map(String))];
  const judged = reports.filter((report) => report.probe === "check"); // whose time is that of all runs of their models
  const times = (key) => [...new Set((judged.length ? judged : reports).map((report) => num(report.meta[key])).filter((value) => value !== null))];
  const [took, own] = [times("seconds"), times("hookcli_seconds")].map((each) => each.reduce((sum, value) => sum + value, 0));
  const loss = reports.find((report) => (report.meta.loss_value ?? null) !== null)?.meta;
  const measured = reports.map((report) => report.meta).filter((meta) => meta.device !== "meta"); // a run on meta has no values
  const isDrawn = (meta) => String(meta.fill ?? "").startsWith("rand");
  const versions = ["torch", "torchvision", "timm", "transformers"].flatMap((name) => all(name).map((version) => `${name} ${version}`));
  return [
    ["Weights", measured.length ? all("weights").join(" / ") : ""],
    ["Input", all("input").map((text) => (measured.some(isDrawn) && !text.includes("(its example)") ? `${text} (random)` : text)).join(" / ")],
    ["Device", devices(all("device"))],
    ["Dtype", all("dtype").join(" / ")],
    ["Mode", all("mode").join(" / ")],
    ["Autocast", all("amp").join(" / ")],
    ["Optimizer", all("optimizer").join(" / ")],
    ["Backward", loss ? "" : all("backward_vector").map((vector) => `vector-Jacobian product with ${vector}`).join(" / ")],
    ["Loss", loss ? `${Number.isNaN(num(loss.loss_value)) ? "NaN" : number(num(loss.loss_value))}${loss.loss ? ` (${loss.loss})` : ""}` : ""],
    ["Processes", all("processes").join(" / ")],
    ["Took", took ? `${seconds(took)}${all("cached").length ? " (cached)" : ""}` : ""],
    ["hookcli's part", took && own ? `${seconds(own)} (${fixed((100 * own) / took, 0)}%)` : ""],
    ["Seed", all("seed").join(" / ")],
    ["Versions", versions.join(", ")],
  ].filter(([, text]) => text);
}

/** The devices; what needs no values may have been computed on meta beside another one. */
function devices(names) {
  const others = names.filter((name) => name !== "meta");
  return others.length && others.length < names.length ? `${others.join(" / ")} (shapes, MACs and memory: meta)` : names.join(" / ");
}

/** What is said of a record: it changes while the record grows. */
export function recordHead(steps) {
  return [factList(recordFacts(steps)), recordNotes(steps)];
}

function factList(pairs) {
  const list = h("dl", { class: "facts" }, pairs.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", { class: "text", title: text.length > 80 ? text.slice(0, 2000) : null }, text))));
  const more = button({ class: "facts-more" }, () => (more.textContent = list.classList.toggle("open") ? "Fewer facts" : "All facts"), "All facts");
  return h("div", {}, list, more);
}

function totals({ reports, lines }) {
  const found = Object.assign({}, ...reports.map((report) => report.totals).filter((each) => "params" in each));
  if (!("params" in found)) return "";
  const { meta } = reports.find((report) => "macs" in report.totals) ?? { meta: {} };
  const setting = [meta.batch ? `batch ${meta.batch}` : "", meta.mode].filter(Boolean).join(", ");
  const forward = reports.some((report) => "macs" in report.totals && report.meta.complete === false) ? "the forward until it failed" : `one forward${setting ? ` at ${setting}` : ""}`;
  const [training, parts] = lines.find(({ memory }) => memory)?.memory ?? [];
  const tiles = [
    ["Parameters", `${quantity(found.params)}`, !found.params ? "" : found.trainable === found.params ? "all trainable" : `${quantity(found.trainable)} trainable`],
    "macs" in found && ["MACs", quantity(found.macs), `${count(found.macs)} in ${forward}`],
    "kept_bytes" in found && ["Kept for backward", bytes(found.kept_bytes), `by ${forward}${found.kept_mode ? ` in ${found.kept_mode} mode` : ""}`],
    training && ["Memory to train", training, parts],
  ];
  return h("ul", { class: "tiles" }, tiles.filter(Boolean).map(([name, figure, note]) => h("li", {}, h("span", { class: "tile-name" }, name), h("strong", {}, figure), h("span", { class: "tile-note", title: note }, note))));
}

/** A line for each run that did not end well, unless a finding says so. */
function failures(reports) {
  if (reports.some((report) => report.probe === "check" && report.findings.length)) return [];
  const said = new Set(reports.filter((report) => report.meta.complete === false).map((report) => String(report.meta.error ?? "The run ended early: rows are up to there.")));
  return [...said].map((text) => h("p", { class: "failure", role: "alert" }, `Incomplete: ${text}`));
}
