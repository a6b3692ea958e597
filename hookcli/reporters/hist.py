"""Distributions drawn with characters: how many elements of a tensor lie between which powers of two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hookcli.report import Report, Row, TensorStats, formatting
from hookcli.report.grouping import View
from hookcli.report.histogram import OUTSIDE, QUANTILES, Histogram
from hookcli.reporters import footer
from hookcli.reporters.base import SCREEN, Reporter

_WIDTH = 80  # of a file or pipe, as that of a plain terminal
_WIDEST = 120
_AROUND = 8  # lines around the bars: title, quantiles, the run, a prompt
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_Bin = tuple[float, float, int]  # from, to, number of elements


class HistReporter(Reporter):
    """A histogram for each tensor of a report that was made with `--hist`; plain text without escape codes."""

    needs = ("p50", "zeros")
    command = "hookcli activations --hist"
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the histograms of each report."""
        return "".join(f"{line}\n" for report in reports for line in _lines(formatting.printable(report), view))


def _lines(report: Report, view: View) -> Iterator[str]:
    rows = [row for row in report.rows if row.stats is not None]
    for row in rows:
        yield from _figure(row, view)
        yield ""
    yield footer.run_line(report)
    yield from footer.remarks(report)
    if report.skipped:
        yield f"not measured: {footer.skipped_line(report)}"


def _figure(row: Row, view: View) -> Iterator[str]:
    """Draw the distribution of one tensor, with its quantiles below."""
    stats = row.stats
    assert stats is not None
    yield _title(row)
    if stats.hist is None or not stats.finite:
        yield "no finite element" if not stats.finite else "no histogram: run the command with --hist"
        return
    if missing := [key for key in ("zeros", "min", "max") if key in row.lacking]:
        yield f"no histogram: saved without {', '.join(missing)}"
        return
    bins = _fitted(stats, max((view.height or SCREEN) - _AROUND, 12))
    ends = [(formatting.number(low), formatting.number(high)) for low, high, _ in bins]
    names = [low if low == high else f"{low} to {high}" for low, high in ends]
    shares = [_percent(count, stats.numel) for _, _, count in bins]
    left = max(map(len, names))
    room = min(view.width or _WIDTH, _WIDEST) - left - max(map(len, shares)) - 4
    most = max(count for _, _, count in bins)
    for name, share, (_, _, count) in zip(names, shares, bins, strict=True):
        bar = _bar(count / most, room)
        yield f"{name:>{left}}  {share:>{max(map(len, shares))}}  {bar}".rstrip()
    yield _quantiles(row)


def _title(row: Row) -> str:
    """Name the tensor: layer, kind, call, shape, and statistics that the bars do not show."""
    said = [f"{row.fqn or '(model)'}" + (f" ({row['type']})" if row.get("type") else "")]
    said += [str(row[key]) for key in ("kind", "path") if row.get(key)]
    said += [f"call {row['call']}"] if row.get("call") else []
    said += [formatting.shape(row["shape"])] if row.get("shape") is not None else []
    said += [f"{name} {formatting.number(row[name])}" for name in ("mean", "std")]
    said += [f"{row[key]:,} {word}" for key, word in (("nan", "NaN"), ("inf", "Inf")) if row.get(key)]
    return " · ".join(said)


def _quantiles(row: Row) -> str:
    said = [f"{share:.0%} {formatting.number(row[key])}" for key, share in QUANTILES.items()]
    said += [f"outside {form.title} {formatting.share(row, key)}" for key, form in OUTSIDE.items() if row.get(key)]
    return " · ".join([f"min {formatting.number(row['min'])}", *said, f"max {formatting.number(row['max'])}"])


def _percent(count: int, numel: int) -> str:
    share = 100 * count / numel
    return f"{share:.1f}%" if share >= 0.1 or not count else "<0.1%"


def _bar(share: float, width: int) -> str:
    """A bar whose length is this share of the width, and visible if it is not zero."""
    whole, rest = divmod(math.ceil(share * max(width, 1) * 8), 8)
    return (_EIGHTHS[-1] * whole + _EIGHTHS[rest]).rstrip()


def _fitted(stats: TensorStats, lines: int) -> list[_Bin]:
    """The bins from the most negative to the most positive, as narrow as so many lines allow."""
    assert stats.hist is not None
    step = 1
    while len(bins := _bins(stats.hist, stats.zeros, step)) > lines:
        step *= 2
    ends = (stats.min, stats.max)
    return [(max(low, ends[0]), min(high, ends[1]), count) for low, high, count in bins]


def _bins(hist: Histogram, zeros: int, step: int) -> list[_Bin]:
    """All bins between the outermost that hold elements, each over `step` powers of two; zeros are one of their own."""
    sides = []
    for counts in (hist.negative, hist.positive):
        found: dict[int, int] = {}
        for exponent, count in enumerate(counts, hist.low):
            found[exponent // step] = found.get(exponent // step, 0) + count
        used = [place for place, count in found.items() if count]
        places = range(min(used), max(used) + 1) if used else range(0)
        sides.append([(2.0 ** (place * step), 2.0 ** ((place + 1) * step), found[place]) for place in places])
    below = [(-high, -low, count) for low, high, count in reversed(sides[0])]
    return [*below, *([(0.0, 0.0, zeros)] if zeros else []), *sides[1]]
