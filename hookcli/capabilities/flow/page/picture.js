// The architecture as a forward picture: modules as boxes, which fold and unfold as the table's tree does.

import { button, h } from "./dom.js";
import { count, counted } from "./format.js";
import { boxesIn, flowTree, isOwnPlace, openedTo } from "./flow_tree.js";
import { layOutFlow } from "./flow_layout.js";
import { isWithin } from "./names.js";
import { addPart } from "./parts.js";
import { boxSize, drawFlow, markBoxes } from "./picture_boxes.js";
import { colorChoice } from "./picture_color.js";
import { Zoom } from "./picture_zoom.js";
import { onSelect, select, selected } from "./selection.js";

const BOXES_AT_FIRST = 40; // boxes
const MOST_BOXES = 1500; // more would take seconds to place, and nobody could read them
const ZOOM_KEYS = { "+": 1.25, "=": 1.25, "-": 0.8, _: 0.8 };

/** Without figures: pictures of two models that are wired alike are one. */
const wiringOf = (model) => (model.reports("flow")[0]?.rows ?? []).map(({ fqn, type, inputs }) => [fqn, type, inputs]);

addPart({ id: "picture", title: "Picture", drawn: wiringOf, mount: mountPicture });

/**
 * Mount the picture of the report "flow".
 * @param {Context & {excess?: Map<string, number>}} context of a comparison, with the excess of each module's output
 */
function mountPicture(container, context) {
  const picture = new Picture(context);
  container.append(picture.element);
  onSelect((selection) => picture.follow(selection));
  return { show: () => picture.shown(), resize: () => picture.zoom.resized() };
}

class Picture {
  constructor({ model, excess }) {
    this.model = model;
    this.tree = flowTree(model.reports("flow")[0], model);
    this.open = openedTo(this.tree.root, BOXES_AT_FIRST, true).open;
    this.active = null;
    this.told = h("span", { class: "picture-told", role: "status" });
    const on = { click: (event) => this.click(event), keydown: (event) => this.key(event) };
    this.canvas = h("div", { class: "picture-canvas", tabindex: 0, role: "tree", "aria-label": "Architecture, in the order in which tensors flow", on });
    this.zoom = new Zoom(this.canvas);
    this.colors = colorChoice(model, () => this.paint(), excess);
    this.element = h("section", { class: "picture" }, this.tools(), this.canvas);
    this.draw();
  }

  tools() {
    const tool = (text, title, run) => button({ "aria-label": title, title }, run, text);
    const folds = [tool("Fold", "Fold all", () => this.foldAll()), tool("Unfold", "Unfold all", () => this.unfoldAll())];
    const sizes = [tool("−", "Smaller", () => this.zoom.by(0.8)), tool("+", "Larger", () => this.zoom.by(1.25)), tool("Fit", "Fit the picture", () => this.zoom.fit())];
    return h("div", { class: "picture-tools" }, h("span", { class: "choice" }, folds), h("span", { class: "choice" }, sizes), this.colors.element, this.told);
  }

  draw() {
    const began = performance.now();
    this.layout = layOutFlow(this.tree, this.open, (box) => boxSize(box, this.model));
    this.placed = new Map(this.layout.boxes.map((placed) => [placed.box.key, placed]));
    this.svg = drawFlow(this.layout, this.model);
    this.zoom.replace(this.svg, this.layout);
    this.element.dataset.milliseconds = Math.round(performance.now() - began);
    this.paint();
    this.tell(`${count(this.layout.boxes.length)} boxes, ${counted(this.tree.calls.length, "call")}`);
  }

  tell(text) {
    this.told.textContent = text;
  }

  /** Colours and marks, which change without a new layout. */
  paint() {
    this.colors.paint(this.layout.boxes, this.svg);
    markBoxes(this.svg, this.drawnFor(selected().fqn), this.active);
    if (this.active && this.placed.has(this.active)) this.canvas.setAttribute("aria-activedescendant", `box-${this.active}`);
    else this.canvas.removeAttribute("aria-activedescendant");
  }

  shown() {
    this.zoom.resized();
    this.follow(selected());
  }

  /** The boxes of a module: its own, or the folded ones that hold it. */
  drawnFor(fqn) {
    if (!fqn) return new Map();
    const boxes = this.tree.byFqn.get(fqn) ?? boxesIn(this.tree.root).filter((box) => box.fqn === fqn || isWithin(box.fqn, fqn)).slice(0, 1);
    return new Map(boxes.map((box) => [this.drawn(box).key, this.placed.has(box.key) ? "self" : "holds"]));
  }

  drawn(box) {
    while (!this.placed.has(box.key) && box.parent?.parent) box = box.parent;
    return box;
  }

  follow({ fqn, source }) {
    const [key] = this.drawnFor(fqn).keys();
    if (source !== "picture" && key) {
      this.active = key;
      this.zoom.reveal(this.placed.get(key));
    }
    this.paint();
  }

  click(event) {
    const element = event.target.closest("[data-key]");
    const placed = element && this.placed.get(element.dataset.key);
    if (!placed || this.zoom.dragged()) return;
    if (event.target.closest("[data-fold]") || event.detail === 2) this.toggle(placed.box);
    else this.choose(placed.box);
  }

  choose(box) {
    this.active = box.key;
    this.zoom.reveal(this.placed.get(box.key));
    select(box.place, "picture", isOwnPlace(box) ? null : box.row);
    this.paint();
  }

  toggle(box) {
    if (!box.parts.length) return;
    const opens = !this.open.has(box.key);
    const open = new Set(this.open);
    if (opens) open.add(box.key);
    else [box, ...boxesIn(box)].forEach((each) => open.delete(each.key));
    const drawn = this.layout.boxes.length + box.parts.length;
    if (opens && drawn > MOST_BOXES) {
      this.tell(`Not unfolded: ${count(drawn)} boxes, of at most ${count(MOST_BOXES)}; fold others first`);
      return;
    }
    const before = this.placed.get(box.key);
    [this.open, this.active] = [open, box.key];
    this.draw();
    this.zoom.keep(before, this.placed.get(box.key));
  }

  foldAll() {
    this.open = new Set([""]);
    this.draw();
    this.zoom.fit();
  }

  unfoldAll() {
    const { open, all } = openedTo(this.tree.root, MOST_BOXES, false);
    this.open = open;
    this.draw();
    this.zoom.fit();
    if (!all) this.tell(`${this.told.textContent}; unfolded as far as ${count(MOST_BOXES)} boxes go`);
  }

  /** Do what a key asks, as in a tree: arrows move, right and left unfold and fold, Enter selects, + and - zoom, 0 fits. */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const boxes = this.layout.boxes.map((placed) => placed.box);
    const at = boxes.findIndex((box) => box.key === this.active);
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: boxes.length - 1 };
    if (event.key in ZOOM_KEYS) this.zoom.by(ZOOM_KEYS[event.key]);
    else if (event.key === "0") this.zoom.fit();
    else if (event.key in moves) this.goTo(boxes[Math.min(Math.max(moves[event.key], 0), boxes.length - 1)]);
    else if (at < 0 || !this.keyOnBox(event.key, boxes[at], boxes[at + 1])) return;
    event.preventDefault();
  }

  /** True if the key did something. */
  keyOnBox(key, box, next) {
    const open = this.open.has(box.key);
    if (key === "Enter" || key === " ") this.choose(box);
    else if (key === "ArrowRight" && box.parts.length) open ? this.goTo(next) : this.toggle(box);
    else if (key === "ArrowLeft" && open) this.toggle(box);
    else if (key === "ArrowLeft" && box.parent?.parent) this.goTo(box.parent);
    else return false;
    return true;
  }

  goTo(box) {
    if (!box) return;
    this.active = box.key;
    this.zoom.reveal(this.placed.get(box.key));
    this.paint();
  }
}
