// Figures as charts need them: numbers that can be drawn, and a list of those that can't.
import { number } from "./format.js";

/** Ratio of the largest to the smallest magnitude above which an axis is logarithmic, as in the terminal's charts. */
const LOGARITHMIC_FROM = 100;
/** The distances of ticks along an axis of steps. */
export const ROUND_STEPS = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();
/** The distances of ticks along an axis of time, in seconds. */
export const ROUND_TIMES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, ...[1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 7200].map((n) => 60 * n)];
const MOST_LEVELS = 7; // figures along a logarithmic axis

/**
 * The axis that suits figures: linear, or logarithmic if they span orders of magnitude; signed if some are negative.
 * A figure near 0 among larger ones at the same point, such as a mean beside extremes, asks for no logarithm.
 * @param {(number | null)[][]} lines on the axis
 * @returns {{kind: "linear" | "log" | "signed", threshold: number}} `threshold`: magnitude around 0 up to which a
 *   signed logarithmic axis is linear
 */
export function axisOf(lines) {
  const signed = lines.some((values) => values.some((value) => value < 0));
  const points = (lines[0] ?? []).map((_, i) => lines.map((values) => Math.abs(values[i])));
  const largest = points.map((sizes) => Math.max(0, ...sizes.filter(Number.isFinite)));
  const sizes = (signed ? largest : lines.flat()).filter((value) => Number.isFinite(value) && value > 0).sort((a, b) => a - b);
  const most = sizes[sizes.length - 1] ?? 1;
  const least = Math.max(sizes[Math.floor(sizes.length / 20)] ?? 1, most * 1e-12);
  return { kind: most / least > LOGARITHMIC_FROM ? (signed ? "signed" : "log") : "linear", threshold: least / 10 };
}

/**
 * The points of a series that can be drawn, with null elsewhere, and the places of figures that can't. Where a series has
 * no point it has undefined, over which its line goes on.
 * @param {boolean} logarithmic without a place for 0 and negative figures
 * @returns {{drawn: (number | null)[], odd: {index: number, value: number}[]}}
 */
export function drawable(values, logarithmic) {
  const odd = [];
  const drawn = values.map((value, index) => {
    if ((value ?? null) === null) return value;
    if (Number.isFinite(value) && !(logarithmic && value <= 0)) return value;
    odd.push({ index, value });
    return null;
  });
  return { drawn, odd };
}

/**
 * One sentence per series for people who can't see the chart: range, ends, and what is not finite.
 * @param {string[]} names of the points along the x axis
 * @param {{label: string, values: (number | null)[]}[]} series
 */
export function summaryOf(title, names, series) {
  const said = series.map(({ label, values }) => `${label} ${rangeText(names, values)}.`);
  return [`${title}, ${names.length} point${names.length === 1 ? "" : "s"}.`, ...said].join(" ");
}

function rangeText(names, values) {
  const known = values.flatMap((value, index) => (Number.isFinite(value) ? [index] : []));
  const bad = values.filter((value) => (value ?? null) !== null && !Number.isFinite(value)).length;
  const badly = bad ? `; ${bad} NaN or infinite` : "";
  if (!known.length) return `has no finite value${badly}`;
  const least = known.reduce((a, b) => (values[b] < values[a] ? b : a));
  const most = known.reduce((a, b) => (values[b] > values[a] ? b : a));
  const at = (index) => `${number(values[index])} at ${names[index]}`;
  return `from ${at(known[0])} to ${at(known[known.length - 1])}, lowest ${at(least)}, highest ${at(most)}${badly}`;
}

/**
 * Figures along a logarithmic axis: powers of ten, thinned out, or 1, 2 and 5 times those where there are few.
 * @param {number} low above 0
 * @returns {number[]} increasing
 */
export function logLevels(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const powers = Array.from({ length: Math.max(last - first + 1, 0) }, (_, i) => first + i);
  const step = Math.ceil(powers.length / MOST_LEVELS);
  const levels = powers.filter((power) => power % step === 0).map((power) => Number(`1e${power}`));
  if (powers.length > 2) return levels;
  const finer = [first - 1, ...powers].flatMap((power) => [1, 2, 5].map((n) => Number(`${n}e${power}`)));
  return finer.filter((level) => level >= low && level <= high);
}

/**
 * Figures along a signed logarithmic axis: 0 and powers of ten on both sides.
 * @param {number} threshold magnitude up to which the axis is linear
 * @returns {number[]} increasing
 */
export function signedLevels(low, high, threshold) {
  const largest = Math.max(Math.abs(low), Math.abs(high), 10 * threshold);
  const [first, last] = [Math.ceil(Math.log10(threshold)), Math.floor(Math.log10(largest) + 1e-9)];
  const step = Math.ceil((last - first + 1) / (MOST_LEVELS / 2)) || 1;
  const sizes = [];
  for (let power = last; power >= first; power -= step) sizes.unshift(Number(`1e${power}`));
  const levels = [...sizes.map((size) => -size).reverse(), 0, ...sizes];
  return levels.filter((level) => level >= low && level <= high);
}

/**
 * When a step ended, in seconds since its run began; `at` in hookcli/reporters/step_figures.py.
 * @param {[number, number][]} pairs recorded steps and their times: between and beyond them steps go on at their pace
 */
export function clockOf(pairs) {
  return (step) => {
    const found = pairs.findIndex(([one]) => one >= step);
    const after = Math.min(Math.max(found < 0 ? pairs.length : found, 1), pairs.length - 1);
    const [[from, begin], [until, end]] = [pairs[Math.max(after - 1, 0)], pairs[after]];
    return until === from ? begin : Math.max(begin + ((end - begin) * (step - from)) / (until - from), 0);
  };
}

/** A time along an axis: 30 s, 1.5 min, 2 h. */
export function timeText(time) {
  const [unit, name] = time < 60 ? [1, "s"] : time < 3600 ? [60, "min"] : [3600, "h"];
  return `${Number((time / unit).toPrecision(3))} ${name}`;
}

/** A round figure, as short as it can be written: 0.25, 1e-7. */
export function tickText(value) {
  const size = Math.abs(value);
  const rounded = Number(value.toPrecision(6));
  return size && (size < 1e-3 || size >= 1e5) ? rounded.toExponential().replace("e+", "e") : String(rounded);
}
