// The tools above a table: search, type, tree or list, depth, columns.

import { h } from "./dom.js";
import { wordsOf } from "./filter.js";
import { choice, menu } from "./menu.js";
import { openTo, refresh } from "./table_state.js";

const HELP = 'Words in names and types; "-word" leaves out; macs>1M, type=Conv2d, zeros>50%, mean=nan compare a column';

/**
 * The toolbar of a table.
 * @returns {{element: HTMLElement, count: (text: string) => void, sync: () => void}}
 */
export function tableTools(table) {
  const { state } = table;
  const search = h("input", { type: "search", class: "search", placeholder: "Search, or macs>1M", title: HELP, "aria-label": "Search rows", spellcheck: "false", autocomplete: "off" });
  const types = typeSelect(state);
  const found = h("output", { class: "count", "aria-live": "polite" });
  const apply = () => table.search(search.value, types?.value ?? "");
  search.addEventListener("focus", () => state.rows.forEach((row) => wordsOf(row, state.columns)), { once: true }); // so that the first search is fast, too
  search.addEventListener("input", apply);
  search.addEventListener("keydown", (event) => leaveSearch(event, table, apply));
  types?.addEventListener("change", apply);
  const modes = modeChoice(table);
  const element = h("div", { class: "tools", role: "toolbar", "aria-label": "Table" }, search, types, modes?.element, depthSelect(table), columnMenu(table), found);
  const sync = () => {
    search.value = state.search;
    if (types) types.value = state.type;
    modes?.show(state.mode);
  };
  return { element, count: (text) => found.textContent !== text && (found.textContent = text), sync };
}

function leaveSearch(event, table, apply) {
  if (event.key === "Escape") {
    event.target.value = "";
    apply();
  }
  if (["Escape", "Enter", "ArrowDown"].includes(event.key)) {
    event.preventDefault();
    table.scroller.focus();
    if (event.key !== "Escape") table.move(0);
  }
}

function typeSelect(state) {
  const counts = new Map();
  state.rows.forEach(({ values }) => values.type && counts.set(values.type, (counts.get(values.type) ?? 0) + 1));
  if (counts.size < 2) return null;
  const sorted = [...counts].sort(([a], [b]) => a.localeCompare(b));
  const options = sorted.map(([type, total]) => h("option", { value: type }, `${type.slice(0, 60)} (${total})`));
  return h("select", { class: "type", "aria-label": "Type" }, h("option", { value: "" }, "All types"), options);
}

function modeChoice(table) {
  if (!table.state.nested) return null;
  const options = [["tree", "Tree", "Modules within modules"], ["list", "List", "Every row, with its full name"], ["leaves", "Leaves", "Only modules without parts"]];
  return choice("Arrangement", options, table.state.mode, (mode) => table.setMode(mode));
}

function depthSelect(table) {
  const { state } = table;
  const deepest = Math.max(0, ...state.rows.filter((row) => row.children.length).map((row) => row.level));
  if (!state.nested) return null;
  const options = Array.from({ length: deepest + 1 }, (_, i) => h("option", { value: i + 1 }, `Depth ${i + 1}`));
  const element = h("select", { "aria-label": "Unfold to a depth" }, h("option", { value: "" }, "Depth"), options);
  element.addEventListener("change", () => {
    if (element.value) openTo(state, Number(element.value));
    element.value = "";
    refresh(state);
    table.drawRows();
  });
  return element;
}

function columnMenu(table) {
  const items = table.columns.slice(1).map((column, i, all) => {
    const box = h("input", { type: "checkbox", checked: column.shown });
    box.addEventListener("change", () => {
      column.shown = box.checked;
      table.layOut();
    });
    const heading = column.group && column.group !== all[i - 1]?.group ? h("div", { class: "menu-heading" }, column.group) : null;
    return [heading, h("label", {}, box, column.title)];
  });
  return menu("Columns", items.flat());
}
