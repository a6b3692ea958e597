"""Reports as image files: which kind of picture a report's columns call for, and the library that draws it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from hookcli.errors import UsageError
from hookcli.reporters import distributions, moments, step_figures
from hookcli.reporters.base import require
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
NEEDS = tuple(picture.needs for picture in _PICTURES)
COMMANDS = tuple(picture.command for picture in _PICTURES)


def ready(columns: Collection[Column], form: Form) -> None:
    """Raise UsageError if reports with these columns can't be drawn here, since a library is missing."""
    names = {column.name for column in columns}
    picture = next((picture for picture in _PICTURES if names.issuperset(picture.needs)), None)
    if picture in (_GRAPH, _FLOW) and shutil.which("dot") is None:
        raise UsageError(f"--format {form}: needs Graphviz, whose `dot` is not on PATH; --format dot works without it")
    if picture in (_OVER_STEPS, _MEMORY, _HISTOGRAMS):
        require(form, "matplotlib.figure", extra="charts")


def drawn(reports: Sequence[Report], view: View, form: Form) -> bytes:
    """Draw the reports, which are of one kind, as the bytes of a file."""
    picture = _kind(reports) if reports else None
    if picture is None:
        return b""
    if picture in (_GRAPH, _FLOW):
        from hookcli.reporters.dot import drawn_graph  # which imports Graphviz's package

        return b"".join(drawn_graph(report, view.depth).pipe(format=form) for report in reports)
    from hookcli.reporters import memory_plot, plots  # which import Matplotlib

    if picture is _OVER_STEPS:
        return plots.charts(reports, view, form)
    return memory_plot.memory_plot(reports, form) if picture is _MEMORY else plots.histograms(reports, form)


def _kind(reports: Sequence[Report]) -> _Picture:
    """The kind of the reports; rows tell where a choice of columns has left none that do."""
    names = {column.name for report in reports for column in report.columns}
    rows = [row for report in reports for row in report.rows[:1]]
    for picture in _PICTURES:
        if all(name in names or any(row.get(name) is not None for row in rows) for name in picture.needs):
            return picture
    return _OVER_STEPS  # of no step, with chosen columns
