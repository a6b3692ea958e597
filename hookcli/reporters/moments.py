"""A timeline of memory to chart: its phases, its kinds of memory, its peak. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from hookcli.report import Report, Row, formatting
from hookcli.report.columns import MEMORY_KINDS
from hookcli.reporters import footer

NEEDS = ("operator", "highest")
"""Columns that a timeline has."""


def is_timeline(report: Report) -> bool:
    """True if rows are moments with bytes in use."""
    return report.grouping == "moments"


def phases(report: Report) -> list[tuple[str, int]]:
    """Each phase with the number of its first row; not the loss, a few operators whose name would hide the next."""
    found, start = [], 0
    for phase, rows in groupby(row["phase"] for row in report.rows):
        found += [(str(phase), start)] if phase != "loss" else []
        start += len(list(rows))
    return found


def kinds(report: Report) -> list[tuple[str, Sequence[int]]]:
    """The title of each kind of memory, with its bytes at each moment; kinds without any are left out."""
    found = [(column.title, [row.get(column.name) or 0 for row in report.rows]) for column in MEMORY_KINDS]
    return [(title, sizes) for title, sizes in found if any(sizes)]


def peak(report: Report) -> tuple[int, Row]:
    """The number and the row of the highest moment."""
    return max(enumerate(report.rows), key=lambda item: int(item[1]["highest"]))


def peak_text(row: Row) -> str:
    """When a peak is: backward of layer1.0.conv1 (aten.convolution_backward)."""
    return f"{row['phase']} {row.fqn}".rstrip() + f" ({row['operator']})"


def above(report: Report) -> str:
    """Describe the run and its peak."""
    if not report.rows:
        return f"{footer.run_line(report)} · no memory was used"
    _, row = peak(report)
    return f"{footer.run_line(report)} · peak {formatting.size(row['highest'])} in {peak_text(row)}"


def held(report: Report) -> Iterator[str]:
    """Describe what holds the memory at the peak, the largest kind first."""
    if report.rows:
        number, row = peak(report)
        sizes = sorted(((sizes[number], title) for title, sizes in kinds(report)), reverse=True)
        said = [f"{formatting.size(size)} {title.lower()}" for size, title in sizes if size]
        yield f"at the peak: {' + '.join(said)} = {formatting.size(row['highest'])}"
    yield from footer.remarks(report)
