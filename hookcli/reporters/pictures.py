"""Reports as image files: which kind of picture a report's columns call for, and the library that draws it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from hookcli.errors import UsageError
from hookcli.reporters import distributions, moments, step_figures
from hookcli.reporters.base import require
from hookcli.table import Column, Report
from hookcli.table.grouping import View

Form = Literal["svg", "png"]


@dataclass(frozen=True, slots=True)
class Picture:
    """A kind of picture: `needs` are the columns of the reports that it shows, `command` makes such reports.

    `ready` raises UsageError if the library that draws is missing; `draw` returns the bytes of a file.
    """

    needs: tuple[str, ...]
    command: str
    ready: Callable[[Form], None]
    draw: Callable[[Sequence[Report], View, Form], bytes]


def _graphviz(form: Form) -> None:
    if shutil.which("dot") is None:
        raise UsageError(f"--format {form}: needs Graphviz, whose `dot` is not on PATH; --format dot works without it")


def _graph(reports: Sequence[Report], view: View, form: Form) -> bytes:
    from hookcli.reporters.dot import drawn

    return b"".join(drawn(report, view.depth).pipe(format=form) for report in reports)


def _flow(reports: Sequence[Report], view: View, form: Form) -> bytes:
    from hookcli.reporters.flow_dot import drawn_flow

    return b"".join(drawn_flow(report, view.depth).pipe(format=form) for report in reports)


def _matplotlib(form: Form) -> None:
    require(form, "matplotlib.figure", extra="charts")


def _charts(reports: Sequence[Report], view: View, form: Form) -> bytes:
    from hookcli.reporters.plots import charts

    return charts(reports, view, form)


def _memory(reports: Sequence[Report], view: View, form: Form) -> bytes:
    from hookcli.reporters.memory_plot import memory_plot

    return memory_plot(reports, form)


def _histograms(reports: Sequence[Report], view: View, form: Form) -> bytes:
    from hookcli.reporters.plots import histograms

    return histograms(reports, form)


_OVER_STEPS = Picture(step_figures.WHERE, "hookcli show --over-time", _matplotlib, _charts)
PICTURES = (
    Picture(("id", "next"), "hookcli graph", _graphviz, _graph),
    Picture(("id", "inputs"), "hookcli flow", _graphviz, _flow),
    _OVER_STEPS,
    Picture(moments.NEEDS, "hookcli memory", _matplotlib, _memory),
    Picture(distributions.NEEDS, "hookcli activations --hist", _matplotlib, _histograms),
)
NEEDS = tuple(picture.needs for picture in PICTURES)
COMMANDS = tuple(picture.command for picture in PICTURES)


def ready(columns: Collection[Column], form: Form) -> None:
    """Raise UsageError if reports with these columns can't be drawn here, since a library is missing."""
    names = {column.name for column in columns}
    picture = next((picture for picture in PICTURES if names.issuperset(picture.needs)), None)
    if picture:
        picture.ready(form)


def drawn(reports: Sequence[Report], view: View, form: Form) -> bytes:
    """Draw the reports, which are of one kind, as the bytes of a file."""
    return _kind(reports).draw(reports, view, form) if reports else b""


def _kind(reports: Sequence[Report]) -> Picture:
    """The kind of the reports; rows tell where a choice of columns has left none that do."""
    names = {column.name for report in reports for column in report.columns}
    rows = [row for report in reports for row in report.rows[:1]]
    for picture in PICTURES:
        if all(name in names or any(row.get(name) is not None for row in rows) for name in picture.needs):
            return picture
    return _OVER_STEPS  # of no step, with chosen columns
