"""Findings as lines for people: one for each finding, and below it one on what to try, at any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hookcli.report import Report, Row
from hookcli.report.grouping import View

_NEEDED = {"check", "severity", "message", "remedy"}
_SEVERITY = 7  # characters of the longest, "warning"
_GAP = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A finding in words. `remedy` is "" if the next finding has the same one."""

    check: str
    severity: str
    said: str
    remedy: str

    def heads(self) -> tuple[str, str]:
        """The beginnings of the finding's line and of the line below it."""
        head = f"{self.check}{' ' * _GAP}{self.severity:<{_SEVERITY + _GAP}}"
        return head, " " * (len(self.check) + _GAP)


def entries(report: Report, view: View) -> Sequence[Entry] | None:
    """The findings of a report in its order; None if it is not one of findings, or columns were chosen."""
    if view.columns or not {column.name for column in report.columns} >= _NEEDED or not report.rows:
        return None
    return list(_entries(report.rows))


def _entries(rows: Sequence[Row]) -> Iterator[Entry]:
    longest = max(len(str(row["check"])) for row in rows)
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        remedy = _remedy(row)
        repeated = after is not None and after["check"] == row["check"] and _remedy(after) == remedy
        said = f"{row.fqn or '(model)'}: {row['message']}"
        yield Entry(str(row["check"]).ljust(longest), str(row["severity"]), said, "" if repeated else remedy)


def _remedy(row: Row) -> str:
    if row.get("cause"):
        return f"May follow from {row['cause']}: fix that first"
    return f"Try: {row['remedy']}" if row.get("remedy") else ""
