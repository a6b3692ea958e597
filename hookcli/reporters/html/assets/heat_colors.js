// The colours of a heat map: where figures lie between the least and the largest, the legend, and the cells.

import { diverging, sequential, token } from "./color.js";
import { ABSENT } from "./data.js";
import { h } from "./dom.js";
import { figureText } from "./format.js";

const SHADES = 256;
const OUTERMOST = 0.01; // share of figures that a linear scale leaves beyond each end, which would press the others together
const LOGARITHMIC_SPAN = 50; // a ratio of largest to smallest above which a scale is logarithmic, unless the reader chooses
const HEAT_SAMPLE = 20000; // figures, besides the least and the largest, that say how they spread
const BAD_COLOR = [214, 0, 80, 255]; // no shade of either scale comes near it
const CROSSED_FROM = 7; // cells of this width and more also bear a cross

/**
 * @typedef {Object} HeatScale
 * @property {"log"|"linear"} kind
 * @property {boolean} signed whether it goes over 0, from blue to orange
 * @property {number} low
 * @property {number} high
 * @property {boolean} clips whether figures lie beyond `low` or `high`
 * @property {(value: number) => number} shade from 0 to 255
 * @property {(share: number) => number} valueAt the figure at a place from 0 to 1
 */

/**
 * The scale for figures.
 * @returns {HeatScale|null} null without any finite figure
 */
export function heatScale(values, asked, sample = HEAT_SAMPLE) {
  const finite = sampledFigures(values, sample);
  if (!finite.length) return null;
  const [least, most] = [finite[0], finite[finite.length - 1]];
  const sizes = finite.map(Math.abs).filter((size) => size > 0).sort();
  const kind = asked !== "auto" ? asked : sizes.length && sizes[sizes.length - 1] / sizes[Math.floor(sizes.length / 50)] > LOGARITHMIC_SPAN ? "log" : "linear";
  const cut = kind === "linear" ? Math.floor(finite.length * OUTERMOST) : 0;
  const ends = [finite[cut], finite[finite.length - 1 - cut]];
  const [from, to] = ends[0] < ends[1] ? ends : [least, most];
  const made = least < 0 ? signedScale(kind, Math.max(-from, to), sizes) : kind === "log" && sizes.length ? logScale(sizes) : linearScale(from, to);
  return { ...made, clips: least < made.low || most > made.high, shade: (value) => Math.round(Math.min(Math.max(made.place(value), 0), 1) * (SHADES - 1)) };
}

function sampledFigures(values, sample) {
  const stride = Math.ceil(values.length / sample);
  let [least, most] = [Infinity, -Infinity];
  const found = [];
  for (let i = 0; i < values.length; i++) {
    const value = values[i];
    if (value === ABSENT || !Number.isFinite(value)) continue;
    if (i % stride === 0 || value < least || value > most) found.push(value);
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  return Float64Array.from(found).sort();
}

function linearScale(low, high) {
  const width = high - low || 1;
  return { kind: "linear", signed: false, low, high, place: (value) => (value - low) / width, valueAt: (share) => low + share * (high - low) };
}

function logScale(sizes) {
  const [low, high] = [sizes[0], sizes[sizes.length - 1]];
  const [from, width] = [Math.log(low), Math.log(high) - Math.log(low) || 1];
  const place = (value) => (value > 0 ? (Math.log(value) - from) / width : 0);
  return { kind: "log", signed: false, low, high, place, valueAt: (share) => Math.exp(from + share * Math.log(high / low)) };
}

/** A scale that is the same on both sides of 0; a logarithmic one is linear around 0, up to a small figure. */
function signedScale(kind, most, sizes) {
  const high = kind === "log" ? sizes[sizes.length - 1] : most || 1;
  if (kind === "linear") return { kind, signed: true, low: -high, high, place: (value) => (value / high + 1) / 2, valueAt: (share) => (2 * share - 1) * high };
  const around = Math.max(sizes[Math.floor(sizes.length / 20)], high * 1e-9);
  const reach = Math.asinh(high / around);
  const place = (value) => (Math.asinh(value / around) / reach + 1) / 2;
  return { kind, signed: true, low: -high, high, place, valueAt: (share) => Math.sinh((2 * share - 1) * reach) * around };
}

/** The colours of a scale's shades, four bytes each. */
function shadesOf(scale) {
  const found = new Uint8ClampedArray(4 * SHADES);
  for (let i = 0; i < SHADES; i++) {
    const share = i / (SHADES - 1);
    found.set([...(scale.signed ? diverging(2 * share - 1) : sequential(share)), 255], 4 * i);
  }
  return found;
}

/** A legend; `root` is its element. */
export class HeatLegend {
  constructor() {
    this.bar = h("canvas", { class: "heat-bar", width: "256", height: "1", "aria-hidden": "true" });
    this.ends = h("div", { class: "heat-ends" });
    const marks = [["heat-key-absent", "not measured"], ["heat-key-bad", "NaN or Inf"]];
    const keys = marks.map(([name, text]) => h("span", { class: "heat-key" }, h("span", { class: `heat-swatch ${name}` }), text));
    this.root = h("div", { class: "heat-legend" }, h("div", { class: "heat-scale" }, this.bar, this.ends), ...keys);
  }

  show(scale, statistic) {
    this.bar.hidden = !scale;
    if (!scale) {
      this.ends.replaceChildren(h("span", {}, "no finite figure"));
      return;
    }
    this.bar.getContext("2d").putImageData(new ImageData(shadesOf(scale), 256, 1), 0, 0);
    const figures = [0, 0.5, 1].map((share) => figureText(statistic, scale.valueAt(share)));
    const beyond = scale.clips ? "; ends stand for all beyond" : "";
    this.ends.replaceChildren(...figures.map((text) => h("span", {}, text)));
    this.bar.title = `${scale.kind === "log" ? "logarithmic" : "linear"}${beyond}`;
  }
}

/**
 * Paint rows: a pixel per module and step, magnified; hatched where nothing was measured.
 * @param {{height: number, width: number, scale: HeatScale|null}} look
 */
export function paintCells(canvas, rows, { height, width, scale }) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(rows.length * height * ratio));
  Object.assign(canvas.style, { width: `${width}px`, height: `${rows.length * height}px` });
  const context = canvas.getContext("2d");
  hatchAll(context, canvas);
  if (!rows.length || !rows[0].values.length) return;
  const steps = rows[0].values.length;
  const columns = Math.min(steps, canvas.width);
  context.imageSmoothingEnabled = false;
  context.drawImage(cellImage(rows, columns, scale && shadesOf(scale), scale), 0, 0, canvas.width, canvas.height);
  if (canvas.width / steps >= CROSSED_FROM * ratio && height >= CROSSED_FROM) crossBad(context, rows, canvas.width / steps, height * ratio);
}

function hatchAll(context, { width, height }) {
  const tile = new OffscreenCanvas(8, 8);
  const pen = tile.getContext("2d");
  pen.strokeStyle = token("--line");
  pen.beginPath();
  for (const from of [-8, 0, 8]) {
    pen.moveTo(from, 8);
    pen.lineTo(from + 8, 0);
  }
  pen.stroke();
  context.fillStyle = context.createPattern(tile, "repeat");
  context.fillRect(0, 0, width, height);
}

function cellImage(rows, columns, shades, scale) {
  const image = new ImageData(columns, rows.length);
  rows.forEach(({ values, bad }, row) => {
    for (let column = 0; column < columns; column++) {
      const from = Math.floor((column * values.length) / columns);
      const until = Math.max(from + 1, Math.floor(((column + 1) * values.length) / columns));
      const at = 4 * (row * columns + column);
      const color = cellColor(values, bad, from, until, shades, scale);
      if (color) image.data.set(color, at);
    }
  });
  const small = new OffscreenCanvas(columns, rows.length);
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}

/** The colour of some steps together: of one that is not finite, else of the largest figure; null without any. */
function cellColor(values, bad, from, until, shades, scale) {
  let best = null;
  for (let i = from; i < until; i++) {
    if (bad[i]) return BAD_COLOR;
    if (values[i] !== ABSENT && Number.isFinite(values[i]) && (best === null || Math.abs(values[i]) > Math.abs(best))) best = values[i];
  }
  if (best === null || !scale) return null;
  const shade = 4 * scale.shade(best);
  return shades.subarray(shade, shade + 4);
}

function crossBad(context, rows, width, height) {
  context.strokeStyle = "#fff";
  context.beginPath();
  rows.forEach(({ bad }, row) => bad.forEach((one, step) => {
    if (!one) return;
    const [left, top, inset] = [step * width, row * height, Math.min(width, height) * 0.3];
    context.moveTo(left + inset, top + inset);
    context.lineTo(left + width - inset, top + height - inset);
    context.moveTo(left + width - inset, top + inset);
    context.lineTo(left + inset, top + height - inset);
  }));
  context.stroke();
}
