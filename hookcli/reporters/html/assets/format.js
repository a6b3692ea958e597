// Values as text. The cells of rows are written already, but for floats; figures of records and charts are not.

import { SHOWN } from "./data.js";

const WRITTEN = {
  quantity, bytes, microseconds, seconds, setting,
  bytes_change: bytes,
  settings: setting,
  share: percent,
  figure: number,
  loss: (value) => (Number.isNaN(value) ? "NaN" : number(value)),
}; // by the kind of a column
const UNDEFINED = "-";
const NOT_FINITE = ["NaN", "Infinity", "-Infinity"];

/** A number with so many decimals; ties go to the even digit, as Python has it. */
export function fixed(value, digits) {
  const steps = Math.abs(value) * 2 ** (digits + 1);
  if (digits < 20 && steps % 2 === 1) {
    const below = Math.floor(Math.abs(value) * 10 ** digits);
    return ((Math.sign(value) * (below + (below % 2))) / 10 ** digits).toFixed(digits);
  }
  return value.toFixed(digits);
}

function exponential(value, digits) {
  const power = Math.floor(Math.log10(Math.abs(value)));
  const unit = 10 ** (power - digits);
  const tie = Number.isInteger(value) && Math.abs(value) < 2 ** 53 && unit >= 10 && Math.abs(value) % unit === unit / 2;
  const below = Math.floor(Math.abs(value) / unit);
  const rounded = tie ? Math.sign(value) * (below + (below % 2)) * unit : value;
  return rounded.toExponential(digits).replace(/e([+-])(\d)$/, "e$10$2");
}

/** So many significant digits without zeros at the end, as Python's "g". */
function general(value, digits) {
  if (value === 0) return "0";
  const power = Number(Math.abs(value).toExponential(digits - 1).split("e")[1]);
  if (power < -4 || power >= digits) return exponential(value, digits - 1).replace(/\.?0+e/, "e");
  const text = fixed(value, digits - 1 - power);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** A number of a report: the strings of strict JSON are the numbers that they name; null if there is none. */
export function num(value) {
  if (typeof value === "number") return value;
  return NOT_FINITE.includes(value) ? Number(value) : null;
}

/** Four significant digits: 0.01234, 12.34, 1.234e-07. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return UNDEFINED;
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const size = Number(Math.abs(value).toExponential(3));
  if (size < 1e-3 || size >= 1e5) return exponential(value, 3);
  return fixed(value, Math.max(0, 3 - Math.floor(Math.log10(size))));
}

/** An integer with commas: 1,234,567. */
export function count(value) {
  return value === null || value === undefined ? UNDEFINED : String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A large count with an SI prefix: 4.089 G. */
export function quantity(value) {
  if (value === null || value === undefined) return UNDEFINED;
  if (value < 1000) return String(value);
  let power = Math.min(Math.floor(Math.log10(value) / 3), 5);
  if (Number(fixed(value / 1000 ** power, 3)) >= 1000 && power < 5) power += 1;
  return `${general(value / 1000 ** power, 4)} ${" KMGTP"[power]}`;
}

/** Bytes with a binary prefix: 12.5 MiB. */
export function bytes(value) {
  if (value === null || value === undefined) return UNDEFINED;
  if (value < 0) return `-${bytes(-value)}`;
  const power = value ? Math.min(Math.floor(Math.floor(Math.log2(value)) / 10), 4) : 0;
  return `${general(value / 1024 ** power, 4)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** A shape as 10x3x224x224, several next to each other, and a single number's as "scalar". */
export function shape(value) {
  if (value === null || value === undefined) return UNDEFINED;
  if (Array.isArray(value[0])) return value.map(shape).join(", ");
  return value.map((size) => (size < 0 ? "*" : size)).join("x") || "scalar";
}

/** A share of 1 as 12.3%. */
export function percent(value) {
  return value === null || value === undefined ? UNDEFINED : `${fixed(100 * value, 1)}%`;
}

/** 0.25 s, 25 ms, or 250 µs. */
export function seconds(value) {
  if (value === null || value === undefined) return UNDEFINED;
  if (value >= 0.1) return `${fixed(value, 2)} s`;
  return value >= 1e-3 ? `${fixed(value * 1e3, 0)} ms` : `${fixed(value * 1e6, 0)} µs`;
}

/** 8.9, 1,669. */
export function microseconds(value) {
  if (value === null || value === undefined) return UNDEFINED;
  return value >= 1000 ? count(fixed(value, 0)) : fixed(value, 1);
}

/** A setting of an optimizer as it is typed: 0.001, or 0.9, 0.999. */
export function setting(value) {
  if (Array.isArray(value)) return value.map(setting).join(", ");
  return value === null || value === undefined ? UNDEFINED : typeof value === "number" ? general(value, 6) : String(value);
}

/** 1 model, 2,000 models. */
export function counted(total, what) {
  return `${count(total)} ${what}${total === 1 ? "" : "s"}`;
}

function shareText(value, numel) {
  if (value === 0 || value === numel) return value === 0 ? "0" : "100%";
  return `${fixed(Math.min(Math.max((100 * value) / numel, 0.1), 99.9), 1)}%`;
}

/** The text of one cell. */
export function cell(row, { name, kind }) {
  const { texts, at } = row[SHOWN];
  return kind === "figure" ? number(num(row[name])) : (texts[name]?.[at] ?? String(row[name] ?? UNDEFINED));
}

/** The text of a record's figure of a column; counts of elements are shares there. */
export function figureText({ kind }, value) {
  if ((value ?? null) === null || (Number.isNaN(value) && kind !== "loss")) return UNDEFINED;
  if (kind === "elements") return shareText(value, 1);
  if (Object.hasOwn(WRITTEN, kind)) return WRITTEN[kind](value);
  return Number.isInteger(value) ? count(value) : number(value);
}
