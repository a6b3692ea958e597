// Reads the data that the page carries.

import { declare } from "./declared.js";
import { unpacked } from "./matrix.js";

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
 * @typedef {{verdict: string, run: string, totals: string[], remarks: string[], next: string, memory: [string, string]|null}} Lines
 */

/** The payload of this page: the JSON document, a zero character, and the rest. */
export async function loadPayload() {
  const text = new TextDecoder().decode(await unpacked(document.getElementById("data").textContent.trim(), "gzip"));
  const end = text.indexOf("\0");
  const written = text.slice(0, end);
  const rest = JSON.parse(text.slice(end + 1));
  declare(rest.columns);
  const explain = Object.assign(Object.create(null), rest.explain); // an id may be "constructor"
  return { ...rest, explain, ...JSON.parse(written), document: written };
}
