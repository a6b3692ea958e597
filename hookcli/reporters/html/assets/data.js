// Reads the data that the page carries.

import { declare } from "./declared.js";
import { declarePlaces } from "./names.js";

const ABSENT_MANTISSA = 32767;
const OTHER_MANTISSAS = { 32766: NaN, 32765: Infinity, 32764: -Infinity };
const EXACT_POWERS = Array.from({ length: 23 }, (_, power) => 10 ** power); // of ten, as floating point has them
/** The key under which a row has what is shown of it: `{texts, at, mark, inside, parent}`. */
export const SHOWN = Symbol("shown");
/** Stands in a matrix where nothing was measured: NaN is a figure. */
export const ABSENT = -1.2345678901234567e308;

/**
 * @typedef {Object} Payload
 * @property {number} schema
 * @property {"model"|"record"|"diff"|"reports"} kind a hint; views look at what is there
 * @property {string} title
 * @property {string} hookcli its version
 * @property {Report[]} reports as in the document of --format json
 * @property {Object<string, Explanation>} explain by the ids of the checks that found something
 * @property {Object<string, Object>} columns declarations of columns by name (`declared`)
 * @property {string[]} charted the figures that the page of two records charts first
 * @property {Lines[]} lines of each report, as the terminal has them around its table
 * @property {Object<string, Head>} heads the top of the page, under "", and of its models, if it has several
 * @property {Object|null} compared differences and both sides, as hookcli/reporters/html/compared.py has them
 * @property {Shown[]} shown of each report
 * @property {Join[]} joined the models that reports are of, each with the numbers of its reports
 * @property {Object<string, string>} places every name in the reports, with the name of the module around it
 * @property {{columns: string[], sort: string|null, depth: number|null, all: boolean}} view as the command asked
 * @property {Object|null} [steps] of a record
 * @property {{path: string, seconds: number}|null} [live]
 * @property {string} document the text of the JSON document, as --format json writes it
 *
 * @typedef {Object} Report
 * @property {string} probe
 * @property {string} model
 * @property {Object<string, any>} meta
 * @property {{name: string, title: string, unit: string|null}[]} columns
 * @property {Object<string, any>[]} rows non-finite numbers are the strings "NaN", "Infinity" and "-Infinity" (`num`)
 * @property {Object<string, any>} totals
 * @property {{fqn: string, reason: string, path?: string, kind?: string}[]} skipped
 * @property {Finding[]} findings
 * @property {string} [grouping] "nested" if absent
 *
 * @typedef {Object} Finding
 * @property {string} check
 * @property {"error"|"warning"|"info"} severity
 * @property {string} fqn
 * @property {string} message
 * @property {string} [remedy]
 * @property {string} [cause]
 *
 * @typedef {{name: string, text: string, means: string, advice: string}} Explanation
 * @typedef {{fqn: string, severity: string, words: string}} Fault
 * @typedef {{facts: [string, string][], tiles: [string, string, string][], failures: string[], lamp: string, judged: string}} Head
 * @typedef {Object} Shown the cells of rows as `texts` by column, null where a value is its own text; by the numbers of
 *   rows their `marks`, the worst fault `inside` of each, and, if they form a tree, `parents`
 * @typedef {Object} Join `modules` and `parameters` with their rows by kind, each as the numbers of its report and its own;
 *   and `merged`, what several rows of one kind are together: of the modules or parameters at `places`, `rows` and `texts`
 * @typedef {{verdict: string, run: string, totals: string[], remarks: string[], next: string, worst: Fault|null}} Lines `worst` is where faults begin
 */

/** The payload of this page: the JSON document, a zero character, and the rest. */
export async function loadPayload() {
  const text = new TextDecoder().decode(await unpacked(document.getElementById("data").textContent.trim(), "gzip"));
  const end = text.indexOf("\0");
  const written = text.slice(0, end);
  const rest = JSON.parse(text.slice(end + 1));
  const explain = Object.assign(Object.create(null), rest.explain); // an id may be "constructor"
  return takenIn({ ...rest, explain, ...JSON.parse(written), document: written });
}

/** The payload, or the news of a record, whose rows and reports know what is shown of them. */
export function takenIn(payload) {
  declare(payload.columns);
  declarePlaces(payload.places);
  const { reports, shown, joined, steps } = payload;
  reports.forEach((report, i) => showRows(report, shown[i]));
  steps?.ranks?.table.forEach((report, i) => showRows(report, steps.ranks.shown[i]));
  const all = [...reports, ...(steps?.settings ?? [])];
  for (const join of joined) for (const number of join.reports) all[number].joined = { ...join, all };
  return payload;
}

/** Have rows know what is shown of them. */
export function showRows({ rows }, { texts, marks = {}, inside = {}, parents }) {
  rows.forEach((row, at) => (row[SHOWN] = { texts, at, mark: marks[at] ?? "", inside: inside[at] ?? "", parent: parents?.[at] }));
}

/** The figures of a matrix of modules by steps, as hookcli/record/file/page/rounded.py packs them; ABSENT where there is none. */
export async function unpackFigures(text) {
  const bytes = await unpacked(text, "deflate");
  const size = bytes.length / 4;
  const found = new Float64Array(size);
  for (let i = 0; i < size; i++) {
    const mantissa = bytes[i] | (bytes[size + i] << 8);
    found[i] = figureFrom((mantissa << 16) >> 16, ((bytes[2 * size + i] | (bytes[3 * size + i] << 8)) << 16) >> 16);
  }
  return found;
}

function figureFrom(mantissa, exponent) {
  if (mantissa >= 32764) return mantissa === ABSENT_MANTISSA ? ABSENT : OTHER_MANTISSAS[mantissa];
  if (exponent < 0) return exponent >= -22 ? mantissa / EXACT_POWERS[-exponent] : Number(`${mantissa}e${exponent}`);
  return exponent <= 22 ? mantissa * EXACT_POWERS[exponent] : Number(`${mantissa}e${exponent}`);
}

/** The exact counts in a text; ABSENT where there is none. */
export async function unpackCounts(text) {
  const bytes = await unpacked(text, "deflate");
  return new Float64Array(bytes.buffer).map((count) => (Number.isNaN(count) ? ABSENT : count));
}

/** The bytes in a text: base64 of what was compressed so. */
async function unpacked(text, format) {
  const binary = atob(text);
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < packed.length; i++) packed[i] = binary.charCodeAt(i); // Uint8Array.from takes ten times as long
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream(format));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
