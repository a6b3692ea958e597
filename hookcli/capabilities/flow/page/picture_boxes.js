// Draws the boxes and lines of the forward picture.

import { s } from "./dom.js";
import { isOwnPlace } from "./flow_tree.js";
import { count, shape } from "./format.js";
import { isWithin, relativeName } from "./names.js";

const LETTER_WIDTHS = { name: 6.9, small: 6.1 }; // widths in pixels, of 12 and 11 px
const LONGEST_NAME = 34; // letters

/** The size of a box that is not open: as wide as its text. */
export function boxSize(box, model) {
  const [name, below] = boxText(box, model);
  const width = Math.max(name.length * LETTER_WIDTHS.name, below.length * LETTER_WIDTHS.small) + 20 + (box.parts.length ? 18 : 0);
  return { width: Math.max(below ? 84 : 44, Math.ceil(width)), height: below ? 40 : 24 };
}

/** The two lines of a box: its name below the box around it; its type and output. */
function boxText(box, model) {
  const { row } = box;
  if (row?.kind === "function") return [clippedName(row.type), ""];
  if (row && row.kind !== "module") return [clippedName(row.path ? `${row.kind} ${row.path}` : row.kind), shapeText(row.output_shape)];
  const ends = [box.parts.at(0), box.parts.at(-1)];
  if (box.kind === "run") return [`${count(box.parts.length)} parts`, clippedName(ends.map((part) => boxText(part, model)[0]).join(" … "))];
  const around = box.parent?.fqn ? relativeName(box.fqn, box.parent.fqn) : box.fqn;
  const again = row?.call ? ` (call ${row.call + 1})` : "";
  return [clippedName(around) + again, clippedName([boxType(box, model), shapeText(boxOutput(box, model))].filter(Boolean).join(" · "))];
}

function clippedName(text) {
  const short = String(text ?? "");
  return short.length > LONGEST_NAME ? `${short.slice(0, LONGEST_NAME / 2)}…${short.slice(-LONGEST_NAME / 2 + 1)}` : short;
}

function boxType(box, model) {
  return box.row?.type ?? model.byFqn.get(box.fqn)?.type ?? "";
}

function boxOutput(box, model) {
  return box.row ? box.row.output_shape : (model.byFqn.get(box.fqn)?.shapes[0]?.output_shape ?? null);
}

/** 1x64x56x56; of several, the first and how many more. */
function shapeText(value) {
  if (!value?.length) return "";
  return Array.isArray(value[0]) ? `${shape(value[0])} +${value.length - 1}` : shape(value);
}

/** Draw a layout. */
export function drawFlow(layout, model) {
  const tip = s("marker", { id: "flow-tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0 0 8 4 0 8z", class: "flow-tip" }));
  const opened = layout.boxes.filter((placed) => placed.open);
  const closed = layout.boxes.filter((placed) => !placed.open);
  return s(
    "svg",
    { class: "flow", role: "presentation", viewBox: `0 0 ${Math.ceil(layout.width)} ${Math.ceil(layout.height)}` },
    s("defs", {}, tip),
    s("g", { "aria-hidden": "true" }, layout.lines.map(drawLine)),
    opened.map((placed) => drawBox(placed, model)),
    closed.map((placed) => drawBox(placed, model)),
    s("g", { "aria-hidden": "true" }, layout.lines.filter((line) => line.first).map(drawShape)),
  );
}

function drawBox(placed, model) {
  const { box, x, y, width, height, open } = placed;
  const [name, below] = boxText(box, model);
  const kind = box.row?.kind ?? box.kind;
  const output = boxOutput(box, model) ? `output ${shapeText(boxOutput(box, model))}` : "";
  const checks = [...new Set(findingsOf(box, model, false).map((finding) => finding.check))];
  const label = [...new Set([box.place || name, kind === "function" ? name : boxType(box, model), output, checks.length ? `findings: ${checks.join(", ")}` : ""])].filter(Boolean).join(", ");
  const attributes = { id: `box-${box.key}`, class: `flow-box flow-${kind}${open ? " flow-open" : ""}`, role: "treeitem", "aria-level": boxLevel(box), "aria-label": label, "data-key": box.key, "data-fqn": box.place, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` };
  if (box.parts.length) attributes["aria-expanded"] = String(open);
  return s(
    "g",
    attributes,
    s("title", {}, label),
    s("rect", { width: width.toFixed(1), height: height.toFixed(1), rx: kind === "function" ? 12 : 4 }),
    box.parts.length ? foldSign(open, height) : null,
    open ? s("text", { x: 22, y: 15 }, name, " ", s("tspan", { class: "flow-below" }, boxType(box, model))) : boxLines(name, below, width, box.parts.length ? 9 : 0),
    findingBadge(box, model, width, open),
  );
}

function boxLines(name, below, width, shift) {
  const middle = width / 2 + shift;
  const first = s("text", { x: middle, y: 16, "text-anchor": "middle" }, name);
  return below ? [first, s("text", { class: "flow-below", x: middle, y: 31, "text-anchor": "middle" }, below)] : first;
}

function foldSign(open, height) {
  const y = open ? 11 : height / 2;
  return s("g", { "data-fold": true, class: "flow-fold" }, s("rect", { x: 4, y: y - 7, width: 14, height: 14, rx: 3 }), s("path", { d: open ? `M7 ${y}h8` : `M7 ${y}h8M11 ${y - 4}v8` }));
}

function boxLevel(box) {
  let level = 0;
  for (let each = box; each.parent; each = each.parent) level += 1;
  return level;
}

/** The findings of a box, and of all that is inside unless it is open. */
function findingsOf(box, model, open) {
  if (box.kind !== "module" && !isOwnPlace(box)) return [];
  const within = (fqn) => fqn === box.place || (!open && isWithin(fqn, box.place));
  return model.findings.filter((finding) => finding.severity !== "info" && within(model.owner(finding.fqn)?.fqn ?? ""));
}

function findingBadge(box, model, width, open) {
  const found = findingsOf(box, model, open);
  if (!found.length) return null;
  const worst = found.some((finding) => finding.severity === "error") ? "error" : "warning";
  const text = found.length > 99 ? "99+" : found.length > 1 ? `${found.length}` : "!";
  const wide = 10 + 6 * text.length;
  return s("g", { class: `flow-badge flow-${worst}`, transform: `translate(${(width - wide / 2 - 4).toFixed(1)} 0)` }, s("rect", { x: -wide / 2, y: -8, width: wide, height: 16, rx: 8 }), s("text", { y: 4, "text-anchor": "middle" }, text));
}

function drawLine({ points, arrow, from, to, faint }) {
  return s("path", { class: faint ? "flow-line flow-faint" : "flow-line", "data-from": from, "data-to": to, d: flowCurve(points), "marker-end": arrow ? "url(#flow-tip)" : null });
}

/** A smooth line through the middles between points. */
function flowCurve(points) {
  const at = ([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  const parts = [`M${at(points[0])}`];
  for (let i = 1; i < points.length - 1; i += 1) {
    const [a, b] = [points[i], points[i + 1]];
    parts.push(`Q${at(a)} ${at(i === points.length - 2 ? b : [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2])}`);
  }
  if (points.length === 2) parts.push(`L${at(points[1])}`);
  return parts.join("");
}

function drawShape({ points, shape: sizes }) {
  const [[x, y], [nextX]] = points;
  const left = nextX < x - 4;
  return s("text", { class: "flow-shape", x: (x + (left ? -5 : 5)).toFixed(1), y: (y + 11).toFixed(1), "text-anchor": left ? "end" : "start" }, shapeText(sizes));
}

/** Mark the boxes of the selected module with their lines, and the box that has the keyboard. */
export function markBoxes(svg, chosen, active) {
  for (const element of svg.querySelectorAll("[data-key]")) {
    const how = chosen.get(element.dataset.key);
    element.classList.toggle("flow-selected", how === "self");
    element.classList.toggle("flow-holds", how === "holds");
    element.classList.toggle("flow-active", element.dataset.key === active);
    element.setAttribute("aria-selected", String(how === "self"));
  }
  for (const line of svg.querySelectorAll(".flow-line")) line.classList.toggle("flow-selected", chosen.has(line.dataset.from) || chosen.has(line.dataset.to));
}
