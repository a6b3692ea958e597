// uPlot's options for a chart: axes, lines and bands in the page's colours, and marks that are drawn over the lines.

import { token } from "./color.js";
import { ROUND_STEPS, ROUND_TIMES, logLevels, signedLevels, tickText, timeText } from "./chart_values.js";

const DISTRIBUTIONS = { linear: 1, log: 3, signed: 4 };
const DOTTED = 40; // up to this many points a dot marks each
const CHART_HEIGHT = 200;
const TICK_WIDTH = 6.2; // of a character of a tick, in CSS pixels
const MARK_SIZE = 4; // half of a mark's width, in CSS pixels

export function chartOptions(chart) {
  const { spec, axis, hidden } = chart;
  const { lines } = spec;
  const edges = lines.flatMap((line, i) => (line.band && lines[i - 1]?.band === line.band && !hidden.has(line.band) ? [i] : []));
  const color = colorReader();
  return {
    width: chart.plotBox.clientWidth,
    height: spec.height ?? CHART_HEIGHT,
    padding: [10, 12, 0, 0],
    legend: { show: false },
    cursor: {
      drag: { x: true, y: false, dist: 5 },
      points: { size: 7 },
      sync: spec.sync ? { key: spec.sync, setSeries: false, scales: ["x", null] } : undefined,
    },
    scales: { x: { time: false, range: (plot, min, max) => xRange(plot.data[0], spec.span, min, max) }, y: { distr: DISTRIBUTIONS[axis.kind], ...(axis.kind === "signed" ? { asinh: axis.threshold } : {}), ...(spec.limits ? { range: spec.limits } : {}) } },
    axes: [xAxis(spec, color), yAxis(axis, color)],
    series: [{}, ...lines.map((line) => seriesOf(chart, line, color))],
    bands: edges.map((i) => ({ series: [i + 1, i], fill: color(lines[i].color, 0.16) })),
    hooks: {
      draw: [(plot) => drawMarks(chart, plot, color)],
      setCursor: [(plot) => chart.onCursor(plot.cursor.idx ?? null)],
      setScale: [(plot, key) => key === "x" && chart.plot && chart.onZoom()],
    },
  };
}

/** A reader of the style sheet's colours, also thinned; each is resolved once. */
function colorReader() {
  const known = new Map();
  return (name, alpha = 1) => {
    if (!known.has(name)) known.set(name, token(name));
    return alpha === 1 ? known.get(name) : `color-mix(in srgb, ${known.get(name)} ${100 * alpha}%, transparent)`;
  };
}

/** The ends of the x axis: the zoom's, else the span's. */
function xRange(xs, span, min, max) {
  if (min !== xs[0] || max !== xs[xs.length - 1]) return [min, max];
  const [begin, end] = span ?? [min, max];
  return begin === end ? [begin - 1, end + 1] : [begin, end];
}

function axisLook(color) {
  const grid = { stroke: color("--line"), width: 1 };
  return { stroke: color("--dim"), font: "11px system-ui, sans-serif", grid, ticks: { ...grid, size: 4 } };
}

function xAxis(spec, color) {
  const look = { ...axisLook(color), size: 28, gap: 4 };
  const text = (x) => (x === null ? "" : spec.timed ? timeText(x) : x.toLocaleString("en-US"));
  if (!spec.ticks) return { ...look, incrs: spec.timed ? ROUND_TIMES : ROUND_STEPS, values: (_, xs) => xs.map(text) };
  const at = new Map(spec.ticks.map((tick) => [tick.x, tick.text]));
  return { ...look, align: 1, splits: (plot) => ticksApart(plot, spec.ticks), values: (_, xs) => xs.map((x) => at.get(x)) };
}

/** The ticks whose texts do not overlap, from left to right. */
function ticksApart(plot, ticks) {
  let free = -Infinity;
  const { min, max } = plot.scales.x;
  const shown = ticks.filter(({ x, text }) => {
    const left = x >= min && x <= max ? plot.valToPos(x, "x") : -Infinity;
    const right = left + TICK_WIDTH * text.length;
    if (left < free || left === -Infinity || right > plot.bbox.width / uPlot.pxRatio + 8) return false;
    free = right + 8;
    return true;
  });
  return shown.map((tick) => tick.x);
}

function yAxis({ kind, threshold }, color) {
  const look = { ...axisLook(color), size: 56, values: (_, ys) => ys.map((y) => (y === null ? "" : tickText(y))) };
  if (kind === "linear") return look;
  const levels = kind === "log" ? logLevels : (low, high) => signedLevels(low, high, threshold);
  return { ...look, splits: (_, __, low, high) => levels(low, high), filter: (_, ys) => ys };
}

function seriesOf(chart, line, color) {
  const hidden = chart.hidden.has(line.band ?? line.label);
  return {
    label: line.label,
    show: !hidden,
    stroke: color(line.color, line.band ? 0.55 : 1),
    width: line.band ? 1 : 1.5,
    ...(line.dots ? { paths: () => null } : {}),
    points: { show: line.dots || (!line.band && chart.spec.x.length <= DOTTED), size: line.dots ? 6 : 5, fill: color(line.color) },
  };
}

function drawMarks(chart, plot, color) {
  for (const { index, severity } of chart.spec.marks ?? []) drawFinding(plot, index, color({ error: "--bad", warning: "--warn" }[severity] ?? "--dim"));
  for (const { index, value } of chart.odd) drawOdd(plot, index, value, color(Number.isFinite(value) ? "--dim" : "--bad"));
  const { top, height } = plot.bbox;
  if (chart.spec.span) shadeBeyond(plot, color("--line"));
  if (chart.chosen !== null && isInZoom(plot, chart.chosen)) {
    paintPath(plot, `M${Math.round(plot.valToPos(chart.chosen, "x", true)) + 0.5} ${top}v${height}`, color("--accent"));
  }
}

/** Shade what lies before the first point and after the last one. */
function shadeBeyond(plot, color) {
  const { top, height } = plot.bbox;
  const { min, max } = plot.scales.x;
  const [xs] = plot.data;
  for (const [from, to] of [[min, xs[0]], [xs[xs.length - 1], max]]) {
    const [left, right] = [Math.max(from, min), Math.min(to, max)].map((x) => plot.valToPos(x, "x", true));
    if (left < right) paintPath(plot, `M${left} ${top}H${right}v${height}H${left}z`, color, { fills: true, alpha: 0.35 });
  }
}

/** Draw a triangle at the upper edge, with a faint line below, for a finding. */
function drawFinding(plot, index, color) {
  const x = plot.data[0][index];
  if (x === undefined || !isInZoom(plot, x)) return;
  const { top, height } = plot.bbox;
  const [left, size] = [plot.valToPos(x, "x", true), (MARK_SIZE + 1) * uPlot.pxRatio];
  paintPath(plot, `M${left - size} ${top}h${2 * size}L${left} ${top + 1.6 * size}z`, color, { fills: true });
  paintPath(plot, `M${left} ${top}v${height}`, color, { width: 1, alpha: 0.35 });
}

/**
 * Draw a cross at the lower edge for NaN and -Infinity, at the upper edge for Infinity, and a short line at the lower
 * edge for figures that a logarithmic axis has no place for, 0 and below.
 */
function drawOdd(plot, index, value, color) {
  const x = plot.data[0][index];
  if (!isInZoom(plot, x)) return;
  const { top, height } = plot.bbox;
  const size = MARK_SIZE * uPlot.pxRatio;
  const [left, middle] = [plot.valToPos(x, "x", true), value === Infinity ? top + size : top + height - size];
  const cross = `M${left - size} ${middle - size}l${2 * size} ${2 * size}M${left - size} ${middle + size}l${2 * size} ${-2 * size}`;
  paintPath(plot, Number.isFinite(value) ? `M${left} ${middle}v${size}` : cross, color);
}

function isInZoom(plot, x) {
  return x >= plot.scales.x.min && x <= plot.scales.x.max;
}

/** Stroke or fill a path that is written as in SVG. */
function paintPath({ ctx: context }, path, color, { width = 1.5, alpha = 1, fills = false } = {}) {
  context.save();
  Object.assign(context, { strokeStyle: color, fillStyle: color, lineWidth: width * uPlot.pxRatio, globalAlpha: alpha });
  context[fills ? "fill" : "stroke"](new Path2D(path));
  context.restore();
}
