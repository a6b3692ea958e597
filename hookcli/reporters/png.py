"""Pictures as PNG files: what `--format svg` draws, in pixels."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from hookcli.reporters import pictures
from hookcli.reporters.base import Exporter
from hookcli.table import Column, Report
from hookcli.table.grouping import View


class PngReporter(Exporter):
    """An image in pixels: a graph, charts over steps, memory over a step, or a histogram for each tensor."""

    suffixes = (".png",)
    needs_one = pictures.NEEDS
    commands = pictures.COMMANDS

    def check(self, columns: Collection[Column]) -> None:
        pictures.ready(columns, "png")

    def export(self, reports: Iterable[Report], view: View, path: Path) -> None:
        """Draw the reports."""
        path.write_bytes(pictures.drawn(list(reports), view, "png"))
