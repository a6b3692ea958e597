"""Reports as image files, SVG and PNG: graphs by Graphviz, charts and distributions by Matplotlib."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

from hookcli.errors import UsageError
from hookcli.reporters import distributions, layer_norms, moments, step_figures
from hookcli.reporters.base import Exporter, Reporter, drawing, require
from hookcli.reporters.drawings import DRAWINGS
from hookcli.table import Column, Report
from hookcli.table.grouping import View

Form = Literal["svg", "png"]
_PICTURES: dict[str, tuple[tuple[str, ...], str]] = {
    **{one.command: (one.needs, one.command) for one in DRAWINGS},
    "steps": (step_figures.WHERE, "hookcli show --over-time"),
    "moments": (moments.NEEDS, ""),
    "histograms": (distributions.NEEDS, "hookcli activations --hist"),
    "gradients": (layer_norms.NEEDS, "hookcli grads"),
}
"""Kinds of pictures: the columns of the reports that each shows, and the command that makes such reports, if it is one
of the core or a drawing's."""
_GRAPHS = [one.command for one in DRAWINGS]


class _Drawn:
    """A reporter of images. Which kind of picture it draws, the columns of the reports say."""

    form: Form
    then = "open it in a browser"
    needs_one = tuple(needs for needs, _ in _PICTURES.values())
    commands = tuple(name for kind, (_, own) in _PICTURES.items() for name in filter(None, [own, *drawing(kind)]))

    def check(self, columns: Collection[Column]) -> None:
        """Raise UsageError if reports with these columns can't be drawn here, since a library is missing."""
        names = {column.name for column in columns}
        kind = next((kind for kind, (needs, _) in _PICTURES.items() if names.issuperset(needs)), None)
        if kind in _GRAPHS and shutil.which("dot") is None:
            advice = "--format dot works without it"
            raise UsageError(f"--format {self.form}: needs Graphviz, whose `dot` is not on PATH; {advice}")
        if kind and kind not in _GRAPHS:
            require(self.form, "matplotlib.figure", extra="charts")

    def drawn(self, reports: Sequence[Report], view: View) -> bytes:
        """Draw the reports, which are of one kind, as the bytes of a file."""
        if not reports:
            return b""
        kind = _kind(reports)
        if kind in _GRAPHS:
            from hookcli.reporters.dot import drawn_graph  # which imports the capabilities' drawings

            return b"".join(drawn_graph(report, view.depth).drawn(self.form) for report in reports)
        from hookcli.reporters import plots  # which imports Matplotlib

        if kind in ("steps", "gradients"):
            return (plots.charts if kind == "steps" else plots.gradients)(reports, view, self.form)
        return (plots.timelines if kind == "moments" else plots.histograms)(reports, self.form)


class SvgReporter(_Drawn, Reporter):
    """An image that scales: a graph, charts over steps, norms of gradients, memory over a step, or histograms."""

    suffixes = (".svg",)
    form = "svg"

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the reports."""
        return self.drawn(reports, view).decode()


class PngReporter(_Drawn, Exporter):
    """An image in pixels: a graph, charts over steps, norms of gradients, memory over a step, or histograms."""

    suffixes = (".png",)
    form = "png"

    def export(self, reports: Iterable[Report], view: View, path: Path) -> None:
        """Draw the reports."""
        path.write_bytes(self.drawn(list(reports), view))


def _kind(reports: Sequence[Report]) -> str:
    """The kind of the reports; rows tell where a choice of columns has left none that do."""
    names = {column.name for report in reports for column in report.columns}
    rows = [row for report in reports for row in report.rows[:1]]
    for kind, (needs, _) in _PICTURES.items():
        if all(name in names or any(row.get(name) is not None for row in rows) for name in needs):
            return kind
    return "gradients" if all(report.probe == "grads" for report in reports) else "steps"  # with chosen columns
