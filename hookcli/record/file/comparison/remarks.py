"""Remarks on two records that are compared: what they do not share, and what is wrong with one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import StepEntry
from hookcli.table.formatting import counted, listed


def nothing_in_common(a: Record, b: Record) -> str:
    """The models or steps of two records that have none in common."""

    def said(key: str) -> list[str]:
        return [listed(list(dict.fromkeys(map(attrgetter(key), r.entries)))) or "none" for r in (a, b)]

    models = [{entry.model for entry in record.entries} for record in (a, b)]
    if all(models) and not models[0] & models[1] and max(map(len, models)) > 1:
        return "nothing to compare: no model is in both records: A has {}; B has {}".format(*said("model"))
    return "nothing to compare: no step is in both records: A has steps {}; B {}".format(*said("step"))


def record_remarks(a: Record, b: Record) -> Iterator[str]:
    """Remarks on two records: what is still written or damaged, and which steps only one of them has."""
    for label, record, other in (("A", a, b), ("B", b, a)):
        yield from ending_remarks(label, record)
        there = {(entry.phase, entry.step, entry.forward) for entry in other.entries}
        alone = [e for e in record.entries if (e.phase, e.step, e.forward) not in there]
        if alone and other.entries:
            yield f"{counted(len(alone), 'recorded step')} only in {label} ({_range(alone)})"


def ending_remarks(label: str, record: Record) -> Iterator[str]:
    """Remarks on one of several records: that it is still written, failed, or is damaged."""
    if record.end is None:
        yield f"{label} ({record.path}): no end is recorded; it is still running, or was killed"
    elif record.end.error:
        yield f"{label} ({record.path}): ended with {record.end.error.partition(':')[0]}"
    if damage := record.damage():
        yield f"{label}: {damage}"


def _range(entries: Iterable[StepEntry]) -> str:
    steps = [entry.step for entry in entries]
    return f"{min(steps):,} to {max(steps):,}" if min(steps) != max(steps) else f"{steps[0]:,}"
