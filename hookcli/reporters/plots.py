"""Charts over steps, histograms, norms of gradients, and timelines of memory as images, drawn by Matplotlib."""

from __future__ import annotations

import io
import logging
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from hookcli.reporters import footer, largest, moments
from hookcli.reporters.distributions import Bin, absence, chosen_of, fitted, percent, quantiles, title
from hookcli.reporters.layer_norms import layer_norms
from hookcli.reporters.step_axis import time_marks, x_label
from hookcli.reporters.step_figures import above, against, below, chosen, curves
from hookcli.table import Report, Row, formatting
from hookcli.table.columns.costs import MEMORY_KINDS
from hookcli.table.grouping import View
from hookcli.table.histogram import FORMATS
from hookcli.table.names import abbreviated
from hookcli.table.printable import printable

# Okabe and Ito's colours, which colour blindness keeps apart, but for yellow, which white paper hides.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_MEMORY_COLORS = ("#0072b2", "#56b4e9", "#e69f00", "#f0e442", "#009e73", "#d55e00", "#cc79a7", "#999999")
_DIM, _LINE, _BAD, _SHADE = "#667078", "#e1e4e8", "#b42318", "#f3e7d3"
_LOOK = {
    "axes.axisbelow": True,
    "axes.edgecolor": _LINE,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": _DIM,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "figure.dpi": 160,
    "font.size": 8,
    "grid.color": _LINE,
    "legend.frameon": False,
    "svg.fonttype": "none",  # texts stay texts: small files that can be searched
    "svg.hashsalt": "hookcli",  # the same report is the same file
    "text.parse_math": False,  # a name may contain $
    "xtick.color": _DIM,
    "ytick.color": _DIM,
}
_WIDTH = 9.0  # inches
_CHART, _HISTOGRAM, _TIMELINE, _FLAT_LINE, _HEAD = 1.75, 1.9, 4.2, 0.22, 0.5  # inches of height; _HEAD is the title's
_LAYERS = 4.4  # inches of height
_NAMED, _NAME = 48, 28  # layers that are named below a picture of gradients, and letters of each name
_ACROSS = 3  # histograms in a row
_MOST_BINS, _FEWEST_BINS = 60, 8  # to draw; to take the whole width
_LABELS = 9  # along the axis of a histogram
_DOTTED = 40  # up to this many points are marked
_LETTERS, _HEADED = 150, 105  # of small text in a line, and of a title
_CUT = 1.25  # a bar of zeros is cut at this multiple of the highest other bar


def charts(reports: Sequence[Report], view: View, form: str) -> bytes:
    """Draw the charts of each report, below each other."""
    with _drawing():
        parts = [_Part(printable(report), view) for report in reports]
        figure = Figure(figsize=(_WIDTH, sum(part.height for part in parts)), layout="constrained")
        subfigures = figure.subfigures(len(parts), 1, height_ratios=[part.height for part in parts], squeeze=False)
        for part, place in zip(parts, subfigures[:, 0], strict=True):
            part.draw(place)
        return _saved(figure, form)


class _Part:
    """The charts of one report, with the lines above and below."""

    def __init__(self, report: Report, view: View) -> None:
        columns, others = chosen(report, bool(view.columns))
        figures = list(curves(report, columns))
        self.report = report
        self.drawn = [one for one in figures if not one.flat]
        texts = [*(one.flat for one in figures if one.flat), *below(report, others)]
        self.below = [line for text in texts for line in textwrap.wrap(text, _LETTERS)]
        self.above = textwrap.fill(above(report), 100)
        self.height = _HEAD + _CHART * len(self.drawn) + _FLAT_LINE * len(self.below) + 0.1

    def draw(self, place: Any) -> None:
        place.suptitle(self.above, x=0.01, ha="left", fontsize=10, fontweight="bold")
        if self.drawn:
            axes = place.subplots(len(self.drawn), 1, sharex=True, squeeze=False)[:, 0]
            for number, (one, ax) in enumerate(zip(self.drawn, axes, strict=True)):
                ax.set_title(one.heading)
                for run, (points, color) in enumerate(zip(one.points, cycle(_COLORS), strict=False)):
                    name = formatting.letter(run)
                    steps = [step for step, _ in points]
                    values = [value for _, value in points]
                    marked = {"marker": "o" if len(points) <= _DOTTED else None, "markersize": 2.5}
                    gid = f"curve-{number}{name}"
                    ax.plot(steps, values, color=color, linewidth=1.2, label=name, gid=gid, **marked)
                if one.logarithmic:
                    ax.set_yscale("log")
                if one.limits:
                    ax.set_ylim(*one.limits)
                ax.yaxis.set_minor_locator(NullLocator())
                ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
                if one.lost:
                    at_edge = {"transform": ax.get_xaxis_transform(), "gid": f"curve-{number}-lost"}
                    ax.plot(one.lost, [0.03] * len(one.lost), "x", color=_BAD, markersize=4, **at_edge)
            over_time, axis = self.drawn[-1].over_time, axes[-1].xaxis
            axis.set_label_text("time" if over_time else "step")
            marks = FixedLocator(time_marks(*axes[-1].get_xlim())) if over_time else MaxNLocator(integer=True)
            axis.set_major_locator(marks)
            axis.set_major_formatter(FuncFormatter(lambda x, _: x_label(x, over_time=over_time)))
            if names := against(self.report):
                lines, _ = axes[0].get_legend_handles_labels()
                axes[0].legend(lines, [f"{side.upper()}: {name}" for side, name in names.items()], loc="upper right")
        if self.below:
            place.supxlabel("\n".join(self.below), x=0.01, ha="left", fontsize=7.5, color=_DIM)


def histograms(reports: Sequence[Report], form: str) -> bytes:
    """Draw a histogram for each tensor of the reports."""
    with _drawing():
        printables = [printable(report) for report in reports]
        rows, left_out = chosen_of([row for report in printables for row in report.rows if row.stats is not None])
        below = [text for report in printables for text in footer.run_lines(report)]
        below += [left_out] if left_out else []
        lines = [line for text in below for line in textwrap.wrap(text, _LETTERS)]
        across = min(_ACROSS, max(len(rows), 1))
        down = math.ceil(len(rows) / across)
        height = max(down, 1) * _HISTOGRAM * (1.6 if across == 1 else 1) + _FLAT_LINE * len(lines)
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = list(figure.subplots(down, across, squeeze=False).flat) if rows else []
        for ax, row in zip(axes, rows, strict=False):
            _draw_histogram(ax, row, across)
        for ax in axes[len(rows) :]:
            ax.set_axis_off()
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7.5, color=_DIM)
        return _saved(figure, form)


def _draw_histogram(ax: Any, row: Row, across: int) -> None:
    """Draw bars over bins, as wide as each other; zeros are a bar of their own between the signs."""
    letters = _LETTERS // across
    ax.set_title("\n".join(textwrap.wrap(title(row), int(letters * 0.8))), fontsize=7.5)
    ax.set_xlabel("\n".join(textwrap.wrap(absence(row) or quantiles(row), letters)), fontsize=6.5, loc="left")
    ax.tick_params(labelsize=6.5)
    if absence(row):
        ax.set(xticks=[], yticks=[])
        return
    stats = row.stats
    assert stats is not None
    bins = fitted(stats, _MOST_BINS)
    shares = [100 * one.elements / stats.numel for one in bins]
    colors = [_DIM if one.is_zeros else _COLORS[0] for one in bins]
    others = max((share for one, share in zip(bins, shares, strict=True) if not one.is_zeros), default=0.0)
    bars = ax.bar(range(len(bins)), shares, width=0.9, color=colors)
    float16 = FORMATS[0]
    for place, (one, bar) in enumerate(zip(bins, bars, strict=True)):
        bar.set_gid(f"bar-{place}")
        if one.is_zeros and 0 < others * _CUT < shares[place]:  # it would make all others small
            ax.set_ylim(0, others * _CUT)
            side, align = (1, "left") if place < len(bins) / 2 else (-1, "right")
            where = (place + 0.7 * side, others * _CUT * 0.9)
            ax.text(*where, f"zeros {percent(one.elements, stats.numel)}", fontsize=6.5, color=_DIM, ha=align)
        small, large = sorted((abs(one.low), abs(one.high)))
        if 0 < large <= 2.0 ** (float16.least - 1) or small >= float16.most:
            ax.axvspan(place - 0.5, place + 0.5, color=_SHADE, zorder=0)
    ax.set_xticks(*_ticks(bins, _LABELS // across + 2))
    beside = max(_FEWEST_BINS - len(bins), 0) / 2 + 0.6
    ax.set_xlim(-beside, len(bins) - 1 + beside)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.4g}%"))


def _ticks(bins: Sequence[Bin], most: int) -> tuple[list[float], list[str]]:
    """Marks between bins, evenly: every so many bins, and the place of 0 among them."""
    every = math.ceil(len(bins) / most)
    marked = range(0, math.ceil(len(bins) - every / 2), every)
    edges = {place - 0.5: bins[place].low for place in marked if not bins[place].is_zeros}
    if not bins[-1].is_zeros:
        edges[len(bins) - 0.5] = bins[-1].high
    zero = next((float(place) for place, one in enumerate(bins) if one.is_zeros), None)
    if zero is None and bins[0].low < 0 < bins[-1].high:
        zero = next(place - 0.5 for place, one in enumerate(bins) if one.high > 0)
    if zero is not None:
        edges = {x: value for x, value in edges.items() if abs(x - zero) > every / 2} | {zero: 0.0}
    return list(edges), [f"{value:.3g}" for value in edges.values()]


def timelines(reports: Sequence[Report], form: str) -> bytes:
    """Draw timelines of memory, one below the other: the kinds of memory, stacked, from operator to operator."""
    with _drawing():
        printables = [printable(report) for report in reports]
        figure = Figure(figsize=(_WIDTH, _TIMELINE * len(printables)), layout="constrained")
        for report, ax in zip(printables, figure.subplots(len(printables), 1, squeeze=False)[:, 0], strict=True):
            ax.set_title(moments.above(report), wrap=True)
            ax.set_xlabel("\n".join(moments.held(report)), loc="left", fontsize=6.5)
            if not report.rows:
                continue
            of_kinds = {column.title: [row.get(column.name) or 0 for row in report.rows] for column in MEMORY_KINDS}
            stacked = {title: sizes for title, sizes in of_kinds.items() if any(sizes)}
            moments_drawn = range(len(report.rows))
            areas = ax.stackplot(moments_drawn, [*stacked.values()], labels=[*stacked], colors=_MEMORY_COLORS)
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
        return _saved(figure, form)


def gradients(reports: Sequence[Report], view: View, form: str) -> bytes:
    """Draw the norms of gradients, a report below the other: each layer's, from the input to the loss."""
    with _drawing():
        printables = [printable(report) for report in reports]
        figure = Figure(figsize=(_WIDTH, _LAYERS * len(printables)), layout="constrained")
        for report, place in zip(printables, figure.subfigures(len(printables), 1, squeeze=False)[:, 0], strict=True):
            lines = [*largest.first_lines(report, view), footer.run_line(report)]
            above = "\n".join(textwrap.fill(line, _HEADED) for line in lines)
            place.suptitle(above, x=0.01, ha="left", fontsize=9, fontweight="bold")
            draw_gradients(place.subplots(), report)
        return _saved(figure, form)


def draw_gradients(ax: Any, report: Report) -> None:
    """Draw a curve for each kind of parameter; crosses and triangles at the edge are layers without a norm to draw."""
    norms = layer_norms(report)
    for number, ((name, points), color) in enumerate(zip(norms.curves.items(), cycle(_COLORS), strict=False)):
        look = {"marker": "o" if len(points) <= _DOTTED else ".", "markersize": 2.5, "linewidth": 1.0}
        ax.plot(*zip(*points, strict=True), color=color, label=name, gid=f"gradient-{number}", **look)
    at_edge = {"transform": ax.get_xaxis_transform(), "linestyle": "", "clip_on": False, "markersize": 4}
    for places, label, marker, color in ((norms.lost, "NaN or Inf", "x", _BAD), (norms.zeros, "zero", "v", _DIM)):
        if places:
            height = [0.03] * len(places)
            ax.plot(places, height, color=color, marker=marker, label=label, gid=f"gradient-{label}", **at_edge)
    if norms.curves:
        ax.set_yscale("log")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda norm, _: f"{norm:.4g}"))
    every = math.ceil(len(norms.layers) / _NAMED) or 1
    names = abbreviated([layer or "(model)" for layer in norms.layers[::every]], _NAME)
    ax.set_xticks(range(0, len(norms.layers), every), names, rotation=90, fontsize=6)
    ax.set_xlabel("layer, from the input to the loss")
    ax.set_ylabel(f"L2 norm{' (logarithmic)' * bool(norms.curves)}")
    if norms.curves or norms.lost or norms.zeros:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)


@contextmanager
def _drawing() -> Iterator[None]:
    """Matplotlib in this look, and without its remarks on fonts that lack a character."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with warnings.catch_warnings(), rc_context(_LOOK):
        warnings.simplefilter("ignore")
        yield


def _saved(figure: Figure, form: str) -> bytes:
    """The bytes of an image file; the same figure gives the same file."""
    file = io.BytesIO()
    figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()
