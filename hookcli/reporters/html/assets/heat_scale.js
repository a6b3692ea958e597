// The scale of a heat map: where figures lie between the least and the largest, and the colours of these places.

import { ABSENT } from "./matrix.js";
import { diverging, sequential } from "./color.js";

const SHADES = 256;
const OUTERMOST = 0.01; // share of figures that a linear scale leaves beyond each end, which would press the others together
const LOGARITHMIC_SPAN = 50; // a ratio of largest to smallest above which a scale is logarithmic, unless the reader chooses
const HEAT_SAMPLE = 20000; // figures, besides the least and the largest, that say how they spread

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
export function shadesOf(scale, theme) {
  const found = new Uint8ClampedArray(4 * SHADES);
  for (let i = 0; i < SHADES; i++) {
    const share = i / (SHADES - 1);
    found.set([...(scale.signed ? diverging(2 * share - 1, theme) : sequential(share)), 255], 4 * i);
  }
  return found;
}
