"""Differences between two recorded runs: in settings (optimizers, input, modules, arguments, versions), steps, ends."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

from hookcli.diff.settings import changes_of
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.table import Row
from hookcli.table.columns.recorded import SETTINGS
from hookcli.table.formatting import counted, listed
from hookcli.table.losses import LossCourse, faults

_OF_STEPS = ("input", "dtype", "device", "mode")
_NAMED = 3
_NOT_GIVEN = "not given"
_NUMBER = re.compile(r"^[-+.\deE]+ → [-+.\deE]+$")
_NEGATIVE = re.compile(r"-\.?\d")


class Settings:
    """Gathers the settings in which two runs differ; `see` takes the steps in their order."""

    def __init__(self, a: Record, b: Record) -> None:
        self._differences: dict[str, str] = {}
        self._changes: set[str] = set()
        self._headers = (a.header, b.header)
        ours, theirs = (
            {(x.model, row.fqn): row for x in r.settings for t in x.reports for row in t.rows} for r in (a, b)
        )
        changed: Counter[tuple[str, str]] = Counter()
        for place in filter(theirs.__contains__, ours):
            row, other = ours[place], theirs[place]
            if row.get("type") == other.get("type") and not (row.get("source") or other.get("source")):
                changes = changes_of(row.get("attributes") or {}, other.get("attributes") or {})
                changed.update((str(row.get("type")), f"{name} {change}") for name, change in changes.items())
        for (kind, change), number in changed.items():
            self._differences[f"{kind} {change}"] = f"{change} in {counted(number, kind)}"

    def see(self, a: RecordedStep, b: RecordedStep) -> None:
        """Note the settings of a step, the first time that they differ."""
        ours, theirs = ({key: v for r in reversed(s.reports) for key, v in r.meta.items()} for s in (a, b))
        for key in _OF_STEPS:
            if key in ours and key in theirs:
                self.note(key, ours[key], theirs[key], a.step)
        settings, others = (dict(_groups(step)) for step in (a, b))
        for key in filter(others.__contains__, settings):
            self.note(key, settings[key], others[key], a.step)

    def see_classes(self, compared: Iterable[Row]) -> None:
        """Note the modules without parts whose class differs, the first of them."""
        rows = {row.fqn: row for row in compared}
        containers = {fqn.rpartition(".")[0] for fqn in rows}
        retyped = [row for fqn, row in rows.items() if " → " in (row.get("change") or "") and fqn not in containers]
        for row in retyped[:_NAMED]:
            self.note(f"module {row.fqn or '(model)'}", *row["change"].split(" → ", 1))

    def line(self) -> str:
        """The differences in one line, those that change a step first; "" if there are none."""
        return f"the runs differ: {'; '.join(settings)}" if (settings := self.differences()) else ""

    def differences(self) -> list[str]:
        """The differences, those that change a step first."""
        if all(self._headers):
            ours, theirs = (dict(_arguments(header.argv or (header.name,))) for header in self._headers if header)
            for name in {**ours, **theirs}:
                self.note(name, ours.get(name, _NOT_GIVEN), theirs.get(name, _NOT_GIVEN))
            old, new = (header.versions for header in self._headers if header)
            for name in {**old, **new}:
                self.note(name, old.get(name), new.get(name))
        return [*self._differences.values()]

    def note(self, name: str, a: Any, b: object, step: int | None = None) -> None:
        """Note a setting if it differs, the first time."""
        change = f"{_text(a)} → {_text(b)}"
        if a != b and name not in self._differences and change not in self._changes:  # --lr is the learning rate
            self._changes |= {change} if _NUMBER.search(change) else set()
            self._differences[name] = f"{name} {change}{f' (from step {step:,})' if step else ''}"


def _groups(step: RecordedStep) -> Iterator[tuple[str, object]]:
    """The settings of each parameter group, by what they are called in a sentence."""
    rows = step.rows("optimizer")
    for row in rows:
        where = f" of {row.get('optimizer')} group {row.get('group')}" if rows[1:] else ""
        for column in SETTINGS:
            if row.get(column.name) is not None:
                yield f"{column.title.lower()}{where}", row[column.name]


def _arguments(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The words of a command line by what they are called in a sentence: script, --lr, argument 1."""
    number = 0
    yield "script", argv[0]
    words = iter(pairwise([*argv[1:], "-"]))
    for word, following in words:
        is_option = word.startswith("-") and not _NEGATIVE.match(word)
        name, equals, value = word.partition("=")
        if is_option and equals:
            yield name, value
        elif is_option and following.startswith("-") and not _NEGATIVE.match(following):
            yield word, "given"
        elif is_option:
            yield word, next(words)[0]
        else:
            number += 1
            yield f"argument {number}:", word


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "none" if value is None else str(value)


def nothing_in_common(a: Record, b: Record) -> str:
    """The models or steps of two records that have none in common."""

    def each(key: str) -> list[str]:
        return [listed(list(dict.fromkeys(map(attrgetter(key), r.entries)))) or "none" for r in (a, b)]

    models = [{entry.model for entry in record.entries} for record in (a, b)]
    if all(models) and not models[0] & models[1] and max(map(len, models)) > 1:
        return "nothing to compare: no model is in both records: A has {}; B has {}".format(*each("model"))
    return "nothing to compare: no step is in both records: A has steps {}; B {}".format(*each("step"))


def record_remarks(a: Record, b: Record) -> Iterator[str]:
    """Remarks on two records: what is still written or damaged, and which steps only one of them has."""
    for label, record, other in (("A", a, b), ("B", b, a)):
        yield from ending_remarks(label, record)
        there = {(entry.phase, entry.step, entry.forward) for entry in other.entries}
        alone = [e.step for e in record.entries if (e.phase, e.step, e.forward) not in there]
        if alone and other.entries:
            to = f" to {max(alone):,}" if min(alone) != max(alone) else ""
            yield f"{counted(len(alone), 'recorded step')} only in {label} ({min(alone):,}{to})"


def ending_remarks(label: str, record: Record) -> Iterator[str]:
    """Remarks on one of several records: that it is still written, failed, skipped steps at a NaN, or is damaged."""
    if record.end is None:
        yield f"{label} ({record.path}): no end is recorded; it is still running, or was killed"
    elif record.end.error:
        yield f"{label} ({record.path}): ended with {record.end.error.partition(':')[0]}"
    if skipped := faults({name: LossCourse(skipped=course.skipped) for name, course in record.courses().items()}):
        yield f"{label}: {skipped}"
    if damage := record.damage():
        yield f"{label}: {damage}"
