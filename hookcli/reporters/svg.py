"""Pictures as SVG: graphs by Graphviz, charts and distributions by Matplotlib."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hookcli.reporters import pictures
from hookcli.reporters.base import Reporter
from hookcli.table import Column, Report
from hookcli.table.grouping import View


class SvgReporter(Reporter):
    """An image that scales: a graph, charts over steps, memory over a step, or a histogram for each tensor."""

    suffixes = (".svg",)
    needs_one = pictures.NEEDS
    commands = pictures.COMMANDS

    def check(self, columns: Collection[Column]) -> None:
        pictures.ready(columns, "svg")

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the reports."""
        return pictures.drawn(reports, view, "svg").decode()
