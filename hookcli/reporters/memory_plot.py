"""Timelines of memory as images, drawn by Matplotlib: the kinds of memory, stacked, from operator to operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hookcli.reporters import moments
from hookcli.reporters.plots import drawing, saved
from hookcli.table import Report, formatting
from hookcli.table.columns.costs import MEMORY_KINDS
from hookcli.table.printable import printable

_WIDTH, _HEIGHT = 9.0, 4.2  # inches, of one timeline
_COLORS = ("#0072b2", "#56b4e9", "#e69f00", "#f0e442", "#009e73", "#d55e00", "#cc79a7", "#999999")  # Okabe and Ito


def memory_plot(reports: Sequence[Report], form: str) -> bytes:
    """Draw each timeline, below each other."""
    with drawing():
        shown = [printable(report) for report in reports]
        figure = Figure(figsize=(_WIDTH, _HEIGHT * len(shown)), layout="constrained")
        for report, ax in zip(shown, figure.subplots(len(shown), 1, squeeze=False)[:, 0], strict=True):
            _draw(ax, report)
        return saved(figure, form)


def _draw(ax: Any, report: Report) -> None:
    ax.set_title(moments.above(report), wrap=True)
    ax.set_xlabel("\n".join(moments.held(report)), loc="left", fontsize=6.5)
    if not report.rows:
        return
    found = {column.title: [row.get(column.name) or 0 for row in report.rows] for column in MEMORY_KINDS}
    stacked = {title: sizes for title, sizes in found.items() if any(sizes)}
    areas = ax.stackplot(range(len(report.rows)), list(stacked.values()), labels=list(stacked), colors=_COLORS)
    for number, area in enumerate(areas):
        area.set_gid(f"kind-{number}")
    sizes = [row["highest"] for row in report.rows]
    peak = max(sizes)
    ax.plot([sizes.index(peak)], [peak], "v", color="black", markersize=4, gid="peak")
    starts = moments.phases(report)
    for _, start in starts[1:]:
        ax.axvline(start, color="#667078", linewidth=0.6)
    ax.set_xticks([start for _, start in starts], [name for name, _ in starts], ha="left")
    ax.set_xlim(0, max(len(report.rows) - 1, 1))
    ax.set_ylim(0, peak * 1.05)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda size, _: formatting.size(round(size))))
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)
