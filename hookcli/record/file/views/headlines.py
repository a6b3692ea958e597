"""The lines that stand first in what is said of a record: what went wrong, as parts of capabilities have seen it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import SKIPPED, UNSEARCHED
from hookcli.record.file.views.run_lines import non_finite_line
from hookcli.record.file.views.verdict import causes
from hookcli.registry.pieces import answers, left_out, texts
from hookcli.table.losses import faults, jumps


class Aside(str):
    """A line of a capability that names no cause: all that do come before it."""

    __slots__ = ()


class WithNext(str):
    """A line of a capability, and the command to type `then`."""

    then: str

    def __new__(cls, text: str, then: str) -> Self:
        """Make the line; "" for no command."""
        line = super().__new__(cls, text)
        line.then = then
        return line


class Fault(WithNext):
    """A line of a capability on a fault that lets `run --check` end with exit code 1."""


class Remark(WithNext, Aside):
    """A line of a capability on what is no fault, or not known for one: it stands below the tables."""


def parted(lines: Iterable[str]) -> tuple[list[str], list[str]]:
    """The lines above the tables, and the remarks below them."""
    above: list[str] = []
    below: list[str] = []
    for line in lines:
        (below if isinstance(line, Remark) else above).append(line)
    return above, below


def unmixed(lines: Iterable[str]) -> tuple[list[str], list[str]]:
    """The lines that name a fault, and the asides."""
    faults: list[str] = []
    asides: list[str] = []
    for line in lines:
        (asides if isinstance(line, Aside) else faults).append(line)
    return faults, asides


def wrong_lines(record: Record, *others: str) -> list[str]:
    """The lines of capabilities, on losses that were not finite or that jumped, and `others`; asides come last.

    If no capability names a fault, the errors of the checks of causes.
    """
    courses = record.courses()
    lines = said_by_parts(record)
    if not any(line and not isinstance(line, Aside) for line in lines):
        lines += [f"{model}: {error}" for model, error in causes(record).items()]
    lines += [faults(courses) or jumps(courses), *others]
    return sorted(filter(None, lines), key=lambda line: (isinstance(line, Aside), isinstance(line, Remark)))


def said_by_parts(record: Record) -> list[str]:
    """The lines of capabilities, in the order of their places."""
    lines: list[str] = []
    for one, lines_of_part in sorted(answers("headline", record), key=lambda answer: answer[0].headline_place):
        with left_out(one, f"headline={one.headline!r}"):
            lines += texts([lines_of_part] if isinstance(lines_of_part, str) else lines_of_part)
    return lines


def first_bad_lines(record: Record) -> list[str]:
    """The line on the first non-finite value; no line if that is the loss alone, which another line reports."""
    values, lost = record.non_finite[:1], faults(record.courses())
    return [non_finite_line(one) for one in values if not (lost and one.cause in (UNSEARCHED, SKIPPED))]
