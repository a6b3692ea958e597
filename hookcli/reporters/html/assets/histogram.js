// The distribution of one tensor, from counts by sign and size as hookcli/table/histogram.py keeps them.
import { cell, count, counted, num, number } from "./format.js";
import { button, h, phrases, s } from "./dom.js";
import { finiteOf } from "./declared.js";
import { tickText } from "./chart_values.js";

const NARROW_FORMATS = ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"];
const LEAST_FLOAT16 = 2 ** -25; // smaller ones become 0
const QUANTILES = [["min", "min"], ["1%", "p1"], ["50%", "p50"], ["99%", "p99"], ["max", "max"]];
const BARS_WIDTH = 320;
const BARS_HEIGHT = 96; // of the bars
const AXIS_HEIGHT = 18;
const TOP_HEIGHT = 14; // of the figure of the highest bar
const CUT_FROM = 1.25; // height of a bar of zeros, relative to the highest other bar, from which it is cut
const WIDEST_BAR = 32;
const LABEL_WIDTH = 7; // width of a character of the axis
const HALVINGS = 6; // from the end of the last power of two to a bin of equal width
const MOST_BARS = 40; // of a linear axis, and more than half as many
const FEWEST_BARS = 10; // of tensors with few elements
const NEAR_ZERO = 16; // parts of a linear axis
const MOST_NEAR_ZERO = 0.8; // share of the elements in the part next to 0, above which powers of two show more
let chosenScale = null; // of all histograms: "linear" or "powers", as the reader chose

/**
 * A tensor's distribution: its bars, quantiles, and what lies outside narrower formats.
 * @param {object} row with statistics, and `hist` where histograms were asked for
 */
export function histogram(row, title) {
  const head = h("figcaption", { class: "hist-title" }, title, h("span", { class: "hist-of" }, [row.shape && cell(row, { name: "shape" }), row.dtype].filter(Boolean).join(" ")));
  const bins = row.hist ? binsOf(row) : [];
  const said = [quantilesText(row), ...oddTexts(row)].filter(Boolean).map(({ texts, bad }) => h("p", { class: bad ? "hist-text hist-bad" : "hist-text" }, phrases(texts)));
  if (!bins.length || num(row.min) === num(row.max)) return h("figure", { class: "hist" }, head, h("p", { class: "hist-none" }, histAbsence(row)), said);
  const linear = linearBars(row);
  const body = h("div", {});
  const isLinear = () => chosenScale === "linear" || (!chosenScale && linear.suits);
  const draw = () => {
    const drawn = isLinear() ? linear : powerBars(row, bins);
    scale.textContent = isLinear() ? "linear" : "powers of 2";
    body.replaceChildren(histBars(row, drawn, title), h("p", { class: "hist-text" }, drawn.axis));
  };
  const toggle = () => {
    chosenScale = isLinear() ? "powers" : "linear";
    document.querySelectorAll("figure.hist").forEach((each) => each.dispatchEvent(new Event("rescaled")));
  };
  const scale = button({ class: "hist-scale", title: "Change the axis of values, of all histograms" }, toggle);
  head.append(scale);
  draw();
  return h("figure", { class: "hist", on: { rescaled: draw } }, head, body, said);
}

function histAbsence(row) {
  if (!row.numel) return "The tensor has no elements.";
  if (finiteOf(row) <= 0) return "No element is finite.";
  if (num(row.min) === num(row.max)) return `Every finite element is ${number(num(row.min))}.`;
  return "No histogram was recorded.";
}

/**
 * The bins from the most negative to the most positive, without empty ones at the ends; zeros have their own.
 * @returns {{low: number, high: number, count: number, exponent?: number}[]}
 */
function binsOf({ hist, zeros = 0 }) {
  const positive = hist.positive.map((count, i) => ({ low: 2 ** (hist.low + i), high: 2 ** (hist.low + i + 1), count }));
  const negative = hist.negative.map((count, i) => ({ low: -(2 ** (hist.low + i + 1)), high: -(2 ** (hist.low + i)), count }));
  const all = [...negative.reverse(), { low: 0, high: 0, count: zeros }, ...positive];
  const used = all.flatMap((bin, i) => (bin.count ? [i] : []));
  return used.length ? all.slice(used[0], used[used.length - 1] + 1) : [];
}

/** The narrowest bins that were counted: within a large power of two, bins of equal width. */
function cellsOf(row) {
  const { hist } = row;
  const width = 2 ** (hist.low + hist.positive.length - HALVINGS);
  return binsOf(row).flatMap((bin) => {
    const [counts, first] = [bin.low < 0 ? hist.linear_negative : hist.linear_positive, Math.min(Math.abs(bin.low), Math.abs(bin.high)) / width];
    if (!counts?.length || first < 2 || !width) return [bin];
    const cells = counts.slice(first, 2 * first).map((count, i) => ({ low: (first + i) * width, high: (first + i + 1) * width, count }));
    return bin.low < 0 ? cells.reverse().map(({ low, high, count }) => ({ low: -high, high: -low, count })) : cells;
  });
}

function quantilesText(row) {
  if (!row.hist || !(finiteOf(row) > 0) || num(row.min) === num(row.max)) return null;
  return { texts: QUANTILES.filter(([, key]) => key in row).map(([title, key]) => `${title} ${number(num(row[key]))}`) };
}

/** Zeros, elements that are not finite, and those outside narrower formats. */
function* oddTexts(row) {
  if (row.zeros) yield { texts: [`zeros ${partOf(row.zeros, row.numel)} (${count(row.zeros)})`] };
  const bad = [[row.nan, "NaN"], [row.inf, "Inf"]].filter(([n]) => n);
  const said = bad.map(([n, name]) => `${count(n)} ${name} (${partOf(n, row.numel)})`);
  if (said.length) yield { texts: said, bad: true };
  const outside = row.hist ? NARROW_FORMATS.map((format) => [format.replace("_", " "), row[`outside_${format}`]]).filter(([, n]) => n) : [];
  if (outside.length) yield { texts: outside.map(([title, n], i) => `${i ? "" : "outside "}${title} ${partOf(n, row.numel)}`) };
}

function partOf(count, numel) {
  if (count === numel) return "100%";
  const share = (100 * count) / numel;
  return share >= 0.1 ? `${Math.min(share, 99.9).toFixed(1)}%` : "<0.1%";
}

/** The bars over an axis of values, with what they and the axis show; a bar holds `share` of the height. */
function histBars(row, { bars, labels, most, axis }, title) {
  const shades = bars.filter(isOutside).map(({ left, width }) => histRect("hist-outside", left, 0, width, BARS_HEIGHT));
  const label = `${title}: ${quantilesText(row)?.texts.join(", ") ?? ""}; ${row.zeros ?? 0} zeros of ${row.numel} elements; ${axis}`;
  const box = `0 ${-TOP_HEIGHT} ${BARS_WIDTH} ${TOP_HEIGHT + BARS_HEIGHT + AXIS_HEIGHT}`;
  const line = s("path", { class: "hist-axis", d: `M0 ${BARS_HEIGHT + 0.5}H${BARS_WIDTH}` });
  const top = s("text", { class: "hist-label", x: 0, y: -4 }, most);
  const parts = [...shades, ...bars.flatMap((bar) => histBarOf(bar, row.numel)), line, ...labels, top];
  return s("svg", { class: "hist-bars", viewBox: box, role: "img", "aria-label": label }, ...parts);
}

/** Bars of one width for each power of two. */
function powerBars(row, bins) {
  const width = Math.min(BARS_WIDTH / bins.length, WIDEST_BAR);
  const start = (BARS_WIDTH - bins.length * width) / 2;
  const bars = bins.map((bin, i) => ({ ...bin, left: start + i * width, width }));
  return { ...withHeights(bars), labels: histLabels(bars), axis: "value, a bar for each power of two; height: number of elements" };
}

/**
 * Bars for values of one width, a power of two, so that each cell lies within a bar, or is spread evenly over several. An
 * axis that outliers would stretch ends before them.
 */
function linearBars(row) {
  const [least, most] = [num(row.min), num(row.max)];
  const [first, last] = [num(row.p1) ?? least, num(row.p99) ?? most];
  const beside = last > first ? (last - first) / 2 : Infinity;
  const [from, to] = [Math.max(least, first - beside), Math.min(most, last + beside)];
  const step = 2 ** Math.ceil(Math.log2((to - from) / Math.min(MOST_BARS, Math.max(FEWEST_BARS, 2 * Math.sqrt(finiteOf(row))))));
  const ends = (lower, upper) => [-step * outerEnd(-lower / step), step * outerEnd(upper / step)];
  const [[low, high], [lowest, highest]] = [ends(from, to), ends(least, most)];
  const place = (value) => ((value - low) / (high - low)) * BARS_WIDTH;
  const solid = cellsOf(row).filter((cell) => cell.low !== cell.high && cell.count).map((cell) => ({ ...cell, low: Math.max(cell.low, lowest), high: Math.min(cell.high, highest) }));
  const share = (cell, bar) => Math.max(Math.min(cell.high, bar + step) - Math.max(cell.low, bar), 0) / (cell.high - cell.low);
  const bars = Array.from({ length: Math.min((high - low) / step, 2 * MOST_BARS) }, (_, i) => low + i * step).map((bar) => ({ low: bar, high: bar + step, left: place(bar), width: place(low + step), count: solid.reduce((sum, cell) => sum + cell.count * share(cell, bar), 0) }));
  const zero = row.zeros ? [{ low: 0, high: 0, count: row.zeros, left: Math.min(Math.max(place(0) - 2, 0), BARS_WIDTH - 4), width: 4 }] : [];
  const beyond = Math.round(finiteOf(row) - [...bars, ...zero].reduce((sum, bar) => sum + bar.count, 0));
  const spread = solid.some((cell) => cell.high - cell.low > step && cell.high > low && cell.low < high) ? ", spread evenly where bins are wider" : "";
  const axis = `value, linear; height: number of elements${spread}${beyond > 0 ? `; ${partOf(beyond, row.numel)} beyond the ends` : ""}`;
  const near = solid.filter((cell) => Math.max(-cell.low, cell.high) <= (high - low) / NEAR_ZERO);
  const [all, close] = [solid, near].map((cells) => cells.reduce((sum, cell) => sum + cell.count, 0));
  return { ...withHeights([...bars, ...zero]), labels: linearLabels(low, high, place), axis, suits: close <= MOST_NEAR_ZERO * all };
}

/** The end of a value's bar of width 1 that is farther up; bars begin at whole numbers, and hold their end next to 0. */
function outerEnd(value) {
  return value > 0 ? Math.floor(value) + 1 : Math.ceil(value);
}

/** The bars with their shares of the height. One of zeros is cut if it would leave the others no room. */
function withHeights(bars) {
  const most = Math.max(...bars.map((bar) => (bar.low === bar.high ? 0 : bar.count))) || 1;
  const top = bars.some((bar) => bar.low === bar.high && bar.count > most) ? most * CUT_FROM : most;
  return { bars: bars.map((bar) => ({ ...bar, share: bar.count / top })), most: counted(Math.round(most) || 1, "element") };
}

/** True for a bin whose magnitudes float16 has no place for. */
function isOutside({ low, high }) {
  const [small, large] = [Math.min(Math.abs(low), Math.abs(high)), Math.max(Math.abs(low), Math.abs(high))];
  return large > 0 && (large <= LEAST_FLOAT16 || small >= 2 ** 16);
}

/** A bar with a text that names its limits; the place above it shows the text, too. A cut bar has a gap. */
function histBarOf({ low, high, count: elements, left, width, share }, numel) {
  const shown = elements ? Math.max(Math.min(share, 1) * BARS_HEIGHT, 1) : 0;
  const isZero = low === high;
  const text = `${isZero ? "0" : `${number(low)} to ${number(high)}`}: ${count(Math.round(elements))} (${partOf(elements, numel)})`;
  const inner = Math.max(width - 1, width * 0.8);
  const kind = isZero ? "hist-bar hist-zero" : "hist-bar";
  const cut = share > 1 ? [histRect("hist-cut", left, 8, width, 3)] : [];
  const place = histRect("hist-place", left, 0, width, BARS_HEIGHT, s("title", {}, text));
  return [histRect(kind, left + (width - inner) / 2, BARS_HEIGHT - shown, inner, shown), ...cut, place];
}

function histRect(name, x, y, width, height, ...children) {
  return s("rect", { class: name, x, y, width, height }, ...children);
}

/** Powers of two along the axis, and 0, as far as their texts do not overlap: those next to 0 give way first. */
function histLabels(bars) {
  const ends = ({ low, high, left, width }) => [{ at: left, value: low }, { at: left + width, value: high }];
  const weighed = ({ at, value }) => {
    const power = Math.log2(Math.abs(value));
    return { at, text: Math.abs(power) <= 4 ? tickText(value) : `${value < 0 ? "-" : ""}2^${Math.round(power)}`, weight: power };
  };
  return labelsApart(bars.flatMap((bar) => (bar.low === bar.high ? { at: bar.left + bar.width / 2, text: "0", weight: Infinity } : ends(bar).map(weighed))));
}

/** Round values along a linear axis. */
function linearLabels(low, high, place) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 4));
  const step = power * [1, 2, 5, 10].find((n) => (high - low) / (n * power) <= 6);
  const first = Math.ceil(low / step);
  const values = Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
  return labelsApart(values.map((value) => ({ at: place(value), text: tickText(value), weight: value ? 0 : 1 })));
}

function labelsApart(places) {
  const shown = [];
  for (const one of places.sort((a, b) => b.weight - a.weight)) {
    const half = (one.text.length * LABEL_WIDTH) / 2 + 3;
    const at = Math.min(Math.max(one.at, half - 3), BARS_WIDTH - half + 3);
    if (shown.every((other) => Math.abs(other.at - at) >= half + other.half)) shown.push({ ...one, at, half });
  }
  return shown.map(({ at, text }) => s("text", { class: "hist-label", x: at, y: BARS_HEIGHT + 13, "text-anchor": "middle" }, text));
}
