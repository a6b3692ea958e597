// A comparison as its views need it: each difference beside the figures that each side measured for itself.

import { SHOWN } from "./data.js";
import { joinReports } from "./model.js";

/**
 * @typedef {Object} Comparison as hookcli/reporters/html/compared.py writes it, and
 * @property {Report[]} diffs with the figures of both sides joined; `row[SHOWN]` has `agreement`, `in_b` and both `own` rows
 * @property {Part[]} parts the rows of the diffs by kind, a tab each
 * @property {Report[]} history of two records: figures over steps, B's under names that end in _b
 * @property {Side} a
 * @property {Side} b
 *
 * @typedef {{title: string, diff: Report, kind: string, rows: Row[]}} Part
 * @typedef {{label: string, model: Model, excess: Map<string, number>}} Side `excess`: of each module's outputs
 */

/** The comparison that a page shows, or null. */
export function comparisonOf({ compared, reports }) {
  if (!compared) return null;
  const diffs = compared.diffs.map((number) => reports[number]);
  diffs.forEach((diff, i) => {
    diff.rows.forEach((row, at) => {
      const { own, ...said } = compared.rows[i][at];
      Object.assign(row[SHOWN], said, { own: own.map((place) => place && reports[place[0]].rows[place[1]]) });
      for (const { name, of, side } of compared.columns[i]) if (of in (row[SHOWN].own[side] ?? {})) row[name] = row[SHOWN].own[side][of];
    });
    diff.columns.push(...compared.columns[i]);
  });
  const parts = compared.parts.map(({ report, rows, ...part }) => ({ ...part, diff: reports[report], rows: rows.map((at) => reports[report].rows[at]) }));
  const [a, b] = ["a", "b"].map((label) => {
    const model = joinReports({ reports: reports.filter((report) => report.meta.side === label) });
    return { label, model, excess: new Map(Object.entries(compared.excess[label])) };
  });
  return { ...compared, diffs, parts, history: reports.filter((report) => report.meta.against), a, b };
}
