// The top of the page: what ran, on what, how long, and what hookcli itself cost; totals; theme and saving.

import { chosenTheme, setTheme } from "./color.js";
import { button, h, save } from "./dom.js";
import { choice, menu } from "./menu.js";

/** Mount the header. */
export function mountHeader(container, payload) {
  const { facts, tiles, failures } = payload.heads[Object.hasOwn(payload.heads, payload.title) ? payload.title : ""];
  const themes = [["", "Auto", "Light or dark as the system has it"], ["light", "Light", "Light"], ["dark", "Dark", "Dark"]];
  const switcher = choice("Theme", themes, chosenTheme, setTheme);
  const saved = button({ id: "save-json", title: "The reports as --format json writes them" }, () => save(`${payload.title}.json`, payload.document), "Save JSON");
  const title = h("h1", {}, payload.title);
  const tile = ([name, figure, note]) => h("li", {}, h("span", { class: "tile-name" }, name), h("strong", {}, figure), h("span", { class: "tile-note", title: note }, note));
  const version = h("span", { class: "brand" }, "hookcli ", payload.hookcli);
  container.append(
    h("div", { class: "title-line" }, title, version, h("div", { class: "page-tools" }, keysMenu(), saved, switcher.element)),
    ...(payload.steps ? [h("div", { class: "record-head", id: "record-head" }, recordHead(payload.steps))] : [factList(facts), tiles.length ? h("ul", { class: "tiles" }, tiles.map(tile)) : ""]),
    ...failures.map((text) => h("p", { class: "failure", role: "alert" }, text)),
  );
}

/** The keys, and what can be searched. */
function keysMenu() {
  const keys = [["/", "search"], ["↑ ↓", "select a row"], ["→ ←", "unfold, fold"], ["Home End", "first, last row"], ["Esc", "end the search"]];
  const searches = [["conv -bn", "names and types with conv, without bn"], ["macs>1M", "more than a million"], ["type=Conv2d", "exactly this type"], ["act.zeros>50%", "columns of a group have its prefix"], ["grad.l2=nan", "NaN; =- is a missing value"]];
  const list = (pairs) => h("dl", { class: "keys" }, pairs.map(([key, text]) => [h("dt", {}, key), h("dd", {}, text)]));
  return menu("Keys", [h("div", { class: "menu-heading" }, "Keys"), list(keys), h("div", { class: "menu-heading" }, "Search"), list(searches)]);
}

/** What is said of a record: it changes while the record grows. */
export function recordHead({ facts, faults, notes }) {
  const wrong = faults.map((text) => h("p", { class: "failure", role: "alert" }, text));
  return [...wrong, factList(facts), notes.length ? h("ul", { class: "record-notes" }, notes.map((text) => h("li", {}, text))) : ""];
}

function factList(pairs) {
  const list = h("dl", { class: "facts" }, pairs.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", { class: "text", title: text.length > 80 ? text.slice(0, 2000) : null }, text))));
  const more = button({ class: "facts-more" }, () => (more.textContent = list.classList.toggle("open") ? "Fewer facts" : "All facts"), "All facts");
  return h("div", {}, list, more);
}
