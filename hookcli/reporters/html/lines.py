"""The lines around a report's table, as the terminal has them."""

from __future__ import annotations

from dataclasses import replace

from hookcli.reporters import footer, table_columns
from hookcli.system.escaping import visible, visible_lines
from hookcli.table import Report


def lines_of(report: Report) -> dict[str, object]:
    """Return the verdict, the line on the run, the totals, remarks and the next command."""
    totals = {key: value for key, value in report.totals.items() if key != "verdict"}
    speaks = not report.rows or (totals and totals.keys() != {"rows"})
    return {
        "verdict": visible(str(report.totals.get("verdict", ""))),
        "run": visible(footer.run_line(report)),
        "totals": visible_lines(footer.totals_line(replace(report, totals=totals), python=True)).split("\n")
        if speaks
        else [],
        "remarks": [visible(line) for line in (*footer.remarks(report), *table_columns.notes(report, report.columns))],
        "next": visible(footer.next_line([report])),
        "memory": footer.training_memory(report.totals) if "grad_bytes" in report.totals else None,
    }
