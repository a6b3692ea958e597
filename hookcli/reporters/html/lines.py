"""The lines around a report's table, as the terminal has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hookcli.report import Report, formatting
from hookcli.reporters import footer, table_columns


def lines_of(report: Report) -> dict[str, Any]:
    """Return the verdict, the line on the run, the totals, remarks and the next command."""
    report = formatting.printable(report)
    totals = {key: value for key, value in report.totals.items() if key != "verdict"}
    speaks = not report.rows or (totals and totals.keys() != {"rows"})
    return {
        "verdict": str(report.totals.get("verdict", "")),
        "run": footer.run_line(report),
        "totals": footer.totals_line(replace(report, totals=totals), python=True).splitlines() if speaks else [],
        "remarks": [*footer.remarks(report), *table_columns.notes(report, report.columns)],
        "next": footer.next_line([report]),
    }
