// Values as text, the same as in the terminal's tables (hookcli/table/formatting.py).

const WRITTEN = {
  quantity, bytes, microseconds, seconds, setting,
  bytes_change: bytes,
  settings: setting,
  share: percent,
  figure: number,
  judged: figure,
  source: sourceLine,
  loss: (value) => (Number.isNaN(value) ? "NaN" : number(value)),
  cosine: (value) => (value === null || Number.isNaN(value) ? number(value) : fixed(value, 6)),
  numbers: (numbers) => (numbers ?? []).join(", ") || UNDEFINED,
  names: (names) => (!names?.length ? UNDEFINED : names.length === 1 ? names[0] : `${names[0]} ${names.length > 2 ? "... " : ""}${names.at(-1)}`),
}; // by the kind of a column
const UNDEFINED = "-";
const NOT_FINITE = ["NaN", "Infinity", "-Infinity"];
const LONGEST_SOURCE = 28; // characters

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

/** A shape as 10x3x224x224, several next to each other, and that of one number as "scalar". */
export function shape(value) {
  if (value === null || value === undefined) return UNDEFINED;
  if (Array.isArray(value[0])) return value.map(shape).join(", ");
  return value.map((size) => (size < 0 ? "*" : size)).join("x") || "scalar";
}

/** A share of 1 as 12.3%. */
export function percent(value) {
  return value === null || value === undefined ? UNDEFINED : `${fixed(100 * value, 1)}%`;
}

/** The line of a program with the last parts of its path. */
function sourceLine(value) {
  const text = value ?? "";
  if (text.length <= LONGEST_SOURCE) return text;
  const folder = text.indexOf("/", text.length + 1 - LONGEST_SOURCE);
  return `…${text.slice(folder >= 0 ? folder : 1 - LONGEST_SOURCE)}`;
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

/** The figure of a check: counts as 52 or 25.56 M, others as 0.3125. */
export function figure(value) {
  if (Number.isInteger(value)) return Math.abs(value) >= 1e5 ? quantity(value) : count(value);
  return number(value);
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

function shapes(row, name) {
  const all = row[`${name}s`];
  if ((row[name] ?? null) === null && all?.length) {
    return all.length <= 3 ? all.map(shape).join(" | ") : `${shape(all[0])} … ${shape(all.at(-1))}`;
  }
  const names = name === "input_shape" ? row.input_names : null;
  if (!names?.length || (row[name] ?? null) === null) return shape(row[name]);
  const parts = names.length > 1 ? row[name] : [row[name]];
  return names.map((key, i) => (key ? `${key}=${shape(parts[i])}` : shape(parts[i]))).join(", ");
}

function share(row, { name, kind }) {
  const [value, numel] = [row[name], row.numel];
  if ((value ?? null) === null || numel === 0) return UNDEFINED;
  if ((numel ?? null) === null) return count(value);
  return kind === "faults" ? (value ? count(value) : "") : shareText(value, numel);
}

function shareText(value, numel) {
  if (value === 0 || value === numel) return value === 0 ? "0" : "100%";
  return `${fixed(Math.min(Math.max((100 * value) / numel, 0.1), 99.9), 1)}%`;
}

/** The text of one cell; `isFloat`: numbers of the column are not counts. */
export function cell(row, column, isFloat = false) {
  const { name, kind } = column;
  const value = row[name] ?? null;
  if (kind === "shape") return shapes(row, name);
  if (name === "fqn") return value || "(model)";
  if (kind === "elements" || kind === "faults") return share(row, column);
  if (name === "file" && row.line) return `${value}:${row.line}`;
  if (typeof value === "boolean") return value ? name : "";
  return plain(kind, typeof value === "string" && kind !== "text" ? (num(value) ?? value) : value, isFloat);
}

function plain(kind, value, isFloat) {
  if (Object.hasOwn(WRITTEN, kind)) return WRITTEN[kind](value);
  if (typeof value === "number") return isFloat || !Number.isInteger(value) ? number(value) : count(value);
  if (value !== null && typeof value === "object") return JSON.stringify(value);
  return value === null ? UNDEFINED : String(value);
}

/** The text of a record's figure of a column; counts of elements are shares there. */
export function figureText({ kind }, value) {
  if ((value ?? null) === null || (Number.isNaN(value) && kind !== "loss")) return UNDEFINED;
  return kind === "elements" ? shareText(value, 1) : plain(kind, value, false);
}

/** Faults of a row in words, as the terminal's last column has them. */
export function mark(row) {
  const said = row.edited ? [`edited: ${row.edited}`] : [];
  said.push(...["change", "reset"].filter((key) => row[key]).map((key) => String(row[key])));
  if (row.note) said.push(String(row.note));
  const faults = [row.nan && `${count(row.nan)} NaN`, row.inf && `${count(row.inf)} Inf`, row.numel && row.zeros === row.numel && "all zero"];
  said.push(...faults.filter((text) => text && !String(row.note ?? "").includes(text)));
  if (row.numel === 0) said.push("empty");
  return said.join(", ");
}
