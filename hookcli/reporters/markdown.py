"""A Markdown table, for job summaries and issues."""

from __future__ import annotations

from collections.abc import Sequence

from hookcli import footer, layout, present
from hookcli.fold import View, fitting_depth, fold, for_people
from hookcli.report import Report
from hookcli.reporters.base import SCREEN


class MarkdownReporter:
    """Grouped as the table is, so that it reads."""

    suffixes = (".md", ".markdown")

    def render(self, reports: Sequence[Report], view: View) -> str:
        return "\n".join(_render(report, view) for report in reports)


def _render(report: Report, view: View) -> str:
    report = for_people(report)
    if view.depth is None and not view.sort:
        report = fold(report, fitting_depth(report, SCREEN))
    columns = layout.visible(report, view)
    head = [_cell(column.title or " ") for column in columns]
    rule = [":---" if layout.reads_left(report, column.name) else "---:" for column in columns]
    body = [[_cell(present.cell(row, column.name)) for column in columns] for row in report.rows]
    table = ["| " + " | ".join(line) + " |" for line in (head, rule, *body)]
    notes = [footer.totals_line(report), footer.run_line(report), *footer.remarks(report)]
    notes += layout.notes(report, columns)
    if report.skipped:
        notes.append(f"Not measured: {footer.skipped_line(report)}")
    return "\n".join([f"### {report.probe}: {report.model}", "", *table, "", *(f"{n}  " for n in notes if n), ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
