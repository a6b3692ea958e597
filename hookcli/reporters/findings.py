"""Findings for people and programs: a line for each, the lines below it at any width, and the check behind an id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hookcli import registry
from hookcli.errors import PluginError
from hookcli.table import SEVERITIES, Finding, Report, Row
from hookcli.table.columns import names
from hookcli.table.columns.layouts import FINDINGS_NEEDED
from hookcli.table.formatting import counted
from hookcli.table.grouping import View
from hookcli.table.names import is_operator

_SEVERITY = 7  # characters of the longest, "warning"
_GAP = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """A finding in words. `below` are the lines on its cause and remedy; none if the next finding has the same.

    One with a cause (`follows`) stands below it, with everything else that follows from that.
    """

    check: str
    severity: str
    text: str
    below: Sequence[str]
    follows: bool = False

    def heads(self) -> tuple[str, str]:
        """The beginnings of the finding's line and of the lines below it."""
        head = f"{self.check}{' ' * _GAP}{self.severity:<{_SEVERITY + _GAP}}"
        return head, " " * (len(self.check) + _GAP)


def entries(report: Report, view: View) -> Sequence[Entry] | None:
    """The findings of a report in its order; None if it is not one of findings, or columns were chosen."""
    if view.columns or not {column.name for column in report.columns} >= set(names(FINDINGS_NEEDED)):
        return None
    return list(_entries(report.rows))


def worst(entries: Sequence[Entry]) -> str:
    """The numbers of findings by severity, and the first of the worst: 2 warnings; worst: blocks.7.mlp.1: ...

    Where that may follow from another finding, the first cause is named before it.
    """
    counts = Counter(sorted((one.severity for one in entries), key=SEVERITIES.index))
    place = min(range(len(entries)), key=lambda number: SEVERITIES.index(entries[number].severity))
    begins = next((n for n in range(place, -1, -1) if not entries[n].follows), place)
    text = entries[begins].text
    if begins != place:
        where = f"{text.partition(': ')[0]}: "  # named once, if both are there
        text += f"; then {entries[place].text.removeprefix(where)}"
    return f"{', '.join(counted(number, word) for word, number in counts.items())}; worst: {text}"


def _entries(rows: Sequence[Row]) -> Iterator[Entry]:
    longest = max((len(str(row["check"])) for row in rows), default=0)
    for row, after in zip(rows, [*rows, None][1:], strict=True):
        below = _below(row)
        repeated = after is not None and after["check"] == row["check"] and _below(after) == below
        called_at = f" ({row['source']})" if is_operator(row.fqn) and row.get("source") else ""
        text = f"{row.fqn or '(model)'}{called_at}: {row['message']}"
        lines = () if repeated else below
        yield Entry(str(row["check"]).ljust(longest), str(row["severity"]), text, lines, bool(row.get("cause")))


def _below(row: Row) -> Sequence[str]:
    """The lines on a finding's cause and remedy: a cause may be another one, and then the remedy holds."""
    cause = [f"May follow from {row['cause']}: fix that first"] if row.get("cause") else []
    remedy = [f"{'Else' if cause else 'Try'}: {row['remedy']}"] if row.get("remedy") else []
    return [*cause, *remedy]


NEEDS = ("check", "severity", "hint")  # the columns of a report of findings
COMMAND = "hookcli check"


def rule(name: str) -> Any:
    """Return the check with this id; None if a saved report names one that is not installed."""
    try:
        return registry.load("checks", name)
    except PluginError:
        return None


def title(name: str) -> str:
    """HK012 vanishing-gradients."""
    check = rule(name)
    return f"{name} {check.name}" if check else name


def sentence(report: Report, finding: Finding) -> str:
    """Write a finding on one line: its place and its message."""
    place = f"{report.model}: {finding.fqn}" if finding.fqn else report.model
    return f"{place}: {finding.message}"
