"""Distributions drawn with characters: how many elements of a tensor lie between which values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hookcli.reporters import footer
from hookcli.reporters.bars import lying
from hookcli.reporters.base import SCREEN, Reporter, drawing
from hookcli.reporters.distributions import NEEDS, absence, fitted, percent, quantiles, title
from hookcli.table import Report, Row, formatting
from hookcli.table.grouping import View
from hookcli.table.printable import printable

_WIDTH = 80  # of a file or pipe, as a plain terminal has it
_WIDEST = 120
_AROUND = 8  # lines around the bars: title, quantiles, the run, a prompt


class HistReporter(Reporter):
    """A histogram for each tensor of a report that was made with `--hist`; plain text without escape codes."""

    needs = NEEDS
    commands = ("hookcli activations --hist", *drawing("hist"))
    for_people = True

    def render(self, reports: Sequence[Report], view: View) -> str:
        """Draw the histograms of each report."""
        return "".join(f"{line}\n" for report in reports for line in _lines(printable(report), view))


def _lines(report: Report, view: View) -> Iterator[str]:
    rows = [row for row in report.rows if row.stats is not None]
    for row in rows:
        yield from _figure(row, view)
        yield ""
    yield from footer.run_lines(report)


def _figure(row: Row, view: View) -> Iterator[str]:
    """Draw the distribution of one tensor, with its quantiles below."""
    yield title(row)
    if missing := absence(row):
        yield missing
        return
    stats = row.stats
    assert stats is not None
    bins = fitted(stats, max((view.height or SCREEN) - _AROUND, 12))
    ends = [(formatting.number(low), formatting.number(high)) for low, high, _ in bins]
    names = [low if low == high else f"{low} to {high}" for low, high in ends]
    shares = [percent(count, stats.numel) for _, _, count in bins]
    left, right = max(map(len, names)), max(map(len, shares))
    room = min(view.width or _WIDTH, _WIDEST) - left - right - 4
    most = max(count for _, _, count in bins)
    for name, share, (_, _, count) in zip(names, shares, bins, strict=True):
        yield f"{name:>{left}}  {share:>{right}}  {lying(count / most, max(room, 1))}".rstrip()
    yield quantiles(row)
