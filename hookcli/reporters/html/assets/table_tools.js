// The tools above a table: search, type, tree or list, depth, columns.

import { h } from "./dom.js";
import { choice, menu } from "./menu.js";
import { openTo, refresh, wordsOf } from "./table_state.js";

const HELP = 'Words in names and types; "-word" leaves out; macs>1M, type=Conv2d, zeros>50%, mean=nan compare a column';

/**
 * The toolbar of a table.
 * @returns {{element: HTMLElement, count: (text: string) => void, sync: () => void, hidden: (number: number) => void}}
 */
export function tableTools(table) {
  const { state } = table;
  const apply = () => table.search(search.value, types?.value ?? "");
  const on = {
    focus: () => state.rows.forEach((row) => wordsOf(row, state.columns)), // so that the first search is fast, too
    input: apply,
    keydown: (event) => leaveSearch(event, table, apply),
  };
  const search = h("input", { type: "search", class: "search", placeholder: "Search, or macs>1M", title: HELP, "aria-label": "Search rows", spellcheck: "false", autocomplete: "off", on });
  const types = typeSelect(state, apply);
  const found = h("output", { class: "count", "aria-live": "polite" });
  const options = [["tree", "Tree", "Modules within modules"], ["list", "List", "Every row, with its full name"], ["leaves", "Leaves", "Only modules without parts"]];
  const modes = state.nested ? choice("Arrangement", options, state.mode, (mode) => table.setMode(mode)) : null;
  const columns = columnMenu(table);
  const hidden = (number) => (columns.firstChild.textContent = number ? `Columns (${number} hidden)` : "Columns");
  const element = h("div", { class: "tools", role: "toolbar", "aria-label": "Table" }, search, types, modes?.element, depthSelect(table), columns, found);
  const sync = () => {
    search.value = state.search;
    if (types) types.value = state.type;
    modes?.show(state.mode);
  };
  return { element, count: (text) => found.textContent !== text && (found.textContent = text), sync, hidden };
}

function leaveSearch(event, table, apply) {
  if (event.key === "Escape") {
    event.target.value = "";
    apply();
  }
  if (["Escape", "Enter", "ArrowDown"].includes(event.key)) {
    event.preventDefault();
    table.scroller.focus();
    if (event.key !== "Escape") table.move(Math.max(table.state.visible.findIndex((row) => table.state.found?.has(row)), 0));
  }
}

function typeSelect(state, change) {
  const counts = new Map();
  state.rows.forEach(({ values }) => values.type && counts.set(values.type, (counts.get(values.type) ?? 0) + 1));
  if (counts.size < 2) return null;
  const sorted = [...counts].sort(([a], [b]) => a.localeCompare(b));
  const options = sorted.map(([type, total]) => h("option", { value: type }, `${type.slice(0, 60)} (${total})`));
  return h("select", { class: "type", "aria-label": "Type", on: { change } }, h("option", { value: "" }, "All types"), options);
}

function depthSelect(table) {
  const { state } = table;
  if (!state.nested) return null;
  const change = ({ target }) => {
    if (target.value) openTo(state, Number(target.value));
    target.value = "";
    refresh(state);
    table.drawRows();
  };
  const deepest = Math.max(0, ...state.rows.filter((row) => row.children.length).map((row) => row.level));
  const options = Array.from({ length: deepest + 1 }, (_, i) => h("option", { value: i + 1 }, `Depth ${i + 1}`));
  return h("select", { "aria-label": "Unfold to a depth", on: { change } }, h("option", { value: "" }, "Depth"), options);
}

function columnMenu(table) {
  const items = table.state.columns.slice(1).map((column, i, all) => {
    const change = ({ target }) => {
      Object.assign(column, { shown: target.checked, drop: null }); // what a person asks for stays
      table.layOut();
    };
    const box = h("input", { type: "checkbox", checked: column.shown, on: { change } });
    const heading = column.group && column.group !== all[i - 1]?.group ? h("div", { class: "menu-heading" }, column.group) : null;
    return [heading, h("label", {}, box, column.title)];
  });
  return menu("Columns", items.flat());
}
