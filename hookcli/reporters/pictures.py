"""Reports as image files, SVG and PNG: graphs by Graphviz, charts and distributions by Matplotlib."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from hookcli.errors import UsageError
from hookcli.reporters import distributions, moments, step_figures
from hookcli.reporters.base import Exporter, Reporter, require
from hookcli.table import Column, Report
from hookcli.table.grouping import View

Form = Literal["svg", "png"]


class _Picture(NamedTuple):
    """A kind of picture: `needs` are the columns of the reports that it shows, `command` makes such reports."""

    needs: tuple[str, ...]
    command: str


_GRAPH = _Picture(("id", "next"), "hookcli graph")
_FLOW = _Picture(("id", "inputs"), "hookcli flow")
_OVER_STEPS = _Picture(step_figures.WHERE, "hookcli show --over-time")
_MEMORY = _Picture(moments.NEEDS, "hookcli memory")
_HISTOGRAMS = _Picture(distributions.NEEDS, "hookcli activations --hist")
_PICTURES = (_GRAPH, _FLOW, _OVER_STEPS, _MEMORY, _HISTOGRAMS)


class _Drawn:
    """A reporter of images. Which kind of picture it draws, the columns of the reports say."""

    form: Form
    needs_one = tuple(picture.needs for picture in _PICTURES)
    commands = tuple(picture.command for picture in _PICTURES)

    def check(self, columns: Collection[Column]) -> None:
        """Raise UsageError if reports with these columns can't be drawn here, since a library is missing."""
        names = {column.name for column in columns}
        picture = next((picture for picture in _PICTURES if names.issuperset(picture.needs)), None)
        if picture in (_GRAPH, _FLOW) and shutil.which("dot") is None:
            needs = "needs Graphviz, whose `dot` is not on PATH; --format dot works without it"
            raise UsageError(f"--format {self.form}: {needs}")
        if picture in (_OVER_STEPS, _MEMORY, _HISTOGRAMS):
            require(self.form, "matplotlib.figure", extra="charts")

    def drawn(self, reports: Sequence[Report], view: View) -> bytes:
        """Draw the reports, which are of one kind, as the bytes of a file."""
        picture = _kind(reports) if reports else None
        if picture is None:
            return b""
        if picture in (_GRAPH, _FLOW):
            from hookcli.reporters.dot import drawn_graph  # which imports Graphviz's package

            return b"".join(drawn_graph(report, view.depth).pipe(format=self.form) for report in reports)
        from hookcli.reporters import plots  # which imports Matplotlib

        if picture is _OVER_STEPS:
            return plots.charts(reports, view, self.form)
        plot = plots.timelines if picture is _MEMORY else plots.histograms
        return plot(reports, self.form)


class SvgReporter(_Drawn, Reporter):
    """An image that scales: a graph, charts over steps, memory over a step, or a histogram for each tensor."""

    suffixes = (".svg",)
    form = "svg"

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the reports."""
        return self.drawn(reports, view).decode()


class PngReporter(_Drawn, Exporter):
    """An image in pixels: a graph, charts over steps, memory over a step, or a histogram for each tensor."""

    suffixes = (".png",)
    form = "png"

    def export(self, reports: Iterable[Report], view: View, path: Path) -> None:
        """Draw the reports."""
        path.write_bytes(self.drawn(list(reports), view))


def _kind(reports: Sequence[Report]) -> _Picture:
    """The kind of the reports; rows tell where a choice of columns has left none that do."""
    names = {column.name for report in reports for column in report.columns}
    rows = [row for report in reports for row in report.rows[:1]]
    for picture in _PICTURES:
        if all(name in names or any(row.get(name) is not None for row in rows) for name in picture.needs):
            return picture
    return _OVER_STEPS  # of no step, with chosen columns
