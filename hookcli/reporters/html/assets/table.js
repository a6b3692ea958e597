// A table that folds, sorts, searches and chooses columns, and draws only the rows in sight.

import { framed, h } from "./dom.js";
import { count, counted } from "./format.js";
import { onSelect, select, selected } from "./selection.js";
import { isFolded, refresh, reveal, setFolded, setSearch, tableState } from "./table_state.js";
import { ROW_HEIGHT, bodyRow, fitting, gridTemplate, headerRow } from "./table_rows.js";
import { tableTools } from "./table_tools.js";

const PRINTED = 5000; // rows at most
const SPARE = 8; // rows beyond the edges
let tables = 0;

/**
 * Mount a table.
 * @param {{label: string, rows: TableRow[], columns: TableColumn[], depth: number|null, empty: string}} data rows are linked
 */
export function mountTable(container, data) {
  const table = new Table(data);
  container.append(table.element);
  onSelect((selection) => table.follow(selection));
  return { show: () => table.shown(), resize: () => table.layOut(), print: (all) => table.print(all) };
}

class Table {
  constructor({ label, rows, columns, depth, empty }) {
    this.state = Object.assign(tableState(rows, columns, depth), { id: `table${(tables += 1)}` });
    this.active = null;
    this.width = 0; // of the first column, as the reader dragged it
    this.whole = false;
    this.empty = empty;
    this.tools = tableTools(this);
    this.body = h("div", { class: "table-body", role: "rowgroup", on: { click: (event) => this.click(event) } });
    this.head = h("div", { class: "table-heads", role: "rowgroup", on: { pointerdown: (event) => this.drag(event) } });
    this.nothing = h("p", { class: "nothing" });
    const draw = framed(() => this.drawRows());
    const on = { scroll: draw, keydown: (event) => this.key(event) };
    this.scroller = h("div", { class: "table", tabindex: 0, role: this.state.nested ? "treegrid" : "grid", "aria-label": label, on }, this.head, this.body, this.nothing);
    this.element = h("section", { class: "table-view" }, this.tools.element, this.scroller);
    new ResizeObserver(framed(() => this.layOut())).observe(this.scroller);
    this.layOut();
  }

  /** The columns that are shown, as far as there is room. */
  arrange() {
    const asked = this.state.columns.filter((column, i) => i === 0 || column.shown);
    this.shownColumns = fitting(asked, this.state, { first: this.width, room: this.scroller.clientWidth || Infinity });
    this.tools.hidden(asked.length - this.shownColumns.length);
  }

  shown() {
    this.layOut();
    this.follow(selected());
  }

  /** Draw the header and all widths anew: columns, their order or the mode have changed. */
  layOut() {
    this.arrange();
    const shown = this.shownColumns;
    this.scroller.style.setProperty("--columns", gridTemplate(shown, this.state, { first: this.width, room: this.scroller.clientWidth }));
    const focused = document.activeElement?.dataset?.key;
    this.head.replaceChildren(headerRow(shown, this.state, (column) => this.sortBy(column)));
    if (focused) [...this.head.querySelectorAll("button")].find((button) => button.dataset.key === focused)?.focus();
    this.scroller.setAttribute("aria-colcount", shown.length);
    this.drawRows();
  }

  /** Make the first column wider or narrower by its edge. */
  drag(event) {
    if (!event.target.closest(".edge")) return;
    const cell = this.head.querySelector("[role=columnheader]");
    const begin = cell.offsetWidth - event.clientX;
    const move = ({ clientX }) => {
      this.width = Math.max(80, begin + clientX);
      this.layOut();
    };
    document.addEventListener("pointermove", move);
    document.addEventListener("pointerup", () => document.removeEventListener("pointermove", move), { once: true });
    event.preventDefault();
  }

  /** Draw the rows in sight. */
  drawRows() {
    const { visible } = this.state;
    const columns = this.shownColumns;
    const { scrollTop, clientHeight } = this.scroller;
    const first = this.whole ? 0 : Math.max(0, Math.floor(scrollTop / ROW_HEIGHT) - SPARE);
    const drawn = visible.slice(first, first + (this.whole ? PRINTED : Math.ceil(clientHeight / ROW_HEIGHT) + 2 * SPARE));
    const rows = drawn.map((row, i) => bodyRow(row, first + i, columns, this.state, this.active));
    this.body.style.height = `${visible.length * ROW_HEIGHT}px`;
    this.body.replaceChildren(h("div", { class: "table-window", role: "presentation", style: { transform: `translateY(${first * ROW_HEIGHT}px)` } }, rows));
    this.nothing.hidden = visible.length > 0;
    this.nothing.textContent = this.state.found && this.state.rows.length ? "No row matches the search." : this.empty;
    this.scroller.setAttribute("aria-rowcount", visible.length + 1);
    if (drawn.includes(this.active)) this.scroller.setAttribute("aria-activedescendant", `${this.state.id}-${this.active.id}`);
    else this.scroller.removeAttribute("aria-activedescendant");
    const [shown, all] = [this.state.found?.size ?? visible.length, counted(this.state.rows.length, "row")];
    this.tools.count(this.state.found || shown < this.state.rows.length ? `${count(shown)} of ${all}` : all);
  }

  print(whole) {
    this.whole = whole;
    this.drawRows();
  }

  /** Sort by a column: figures from the largest, words from A; then the other way; then in the original order. */
  sortBy(column) {
    const now = this.state.sort?.column.key === column.key ? this.state.sort.descending : null;
    const next = now === null ? column.numeric : now === column.numeric ? !column.numeric : null;
    this.state.sort = next === null ? null : { column, descending: next };
    refresh(this.state);
    this.layOut();
  }

  search(text, type) {
    setSearch(this.state, text, type);
    this.scroller.scrollTop = 0;
    this.drawRows();
  }

  setMode(mode) {
    this.state.mode = mode;
    refresh(this.state);
    this.layOut();
    if (this.active) this.scrollTo(this.state.visible.indexOf(this.active));
  }

  click(event) {
    const element = event.target.closest("[role=row]");
    const row = element && this.state.rows[Number(element.dataset.row)];
    if (!row) return;
    if (event.target.closest("[data-fold]") || (event.detail === 2 && row.children.length)) this.fold(row, !isFolded(this.state, row));
    else this.choose(row);
  }

  fold(row, folded) {
    setFolded(this.state, row, folded);
    this.drawRows();
  }

  /** Select a row, here and in all other views. */
  choose(row) {
    this.active = row;
    this.scrollTo(this.state.visible.indexOf(row));
    this.drawRows();
    if (row.fqn !== null) select(row.fqn, this.state.id, row.values);
  }

  /** Show what another view selected. */
  follow({ fqn, source, row: values }) {
    if (source === this.state.id || (fqn === null && !this.active)) return;
    const { rows } = this.state;
    const row = rows.find((each) => each.values === values) ?? (fqn === null ? null : rows.find((each) => each.fqn === fqn));
    this.active = row ?? null;
    if (row && source !== "start") this.scrollTo(reveal(this.state, row), true);
    this.tools.sync();
    this.drawRows();
  }

  scrollTo(index, centre = false) {
    if (index < 0) return;
    const room = this.scroller.clientHeight - this.head.offsetHeight;
    const top = index * ROW_HEIGHT;
    const above = top < this.scroller.scrollTop;
    if (!above && top + ROW_HEIGHT <= this.scroller.scrollTop + room) return;
    this.scroller.scrollTop = centre ? top - room / 2 : above ? top : top + ROW_HEIGHT - room;
  }

  key(event) {
    if (event.target !== this.scroller || event.ctrlKey || event.metaKey || event.altKey) return;
    const { visible } = this.state;
    const at = visible.indexOf(this.active);
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / ROW_HEIGHT) - 2);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: visible.length - 1 };
    if (event.key in moves) this.move(moves[event.key]);
    else if (!this.active || at < 0 || !this.keyOnRow(event.key, this.active)) return;
    event.preventDefault();
  }

  move(index) {
    const row = this.state.visible[Math.min(Math.max(index, 0), this.state.visible.length - 1)];
    if (row) this.choose(row);
  }

  /** Keys of a tree: right opens or goes in, left closes or goes out. True if the key did something. */
  keyOnRow(key, row) {
    const tree = this.state.mode === "tree";
    const open = row.children.length > 0 && !isFolded(this.state, row);
    if (key === "Enter" || key === " ") this.choose(row);
    else if (tree && key === "ArrowRight" && row.children.length) open ? this.move(this.state.visible.indexOf(row) + 1) : this.fold(row, false);
    else if (tree && key === "ArrowLeft" && open) this.fold(row, true);
    else if (tree && key === "ArrowLeft" && row.parent) this.choose(row.parent);
    else return false;
    return true;
  }
}
