"""The settings in which two recorded runs differ: command line, versions, input, dtype, and those of optimizers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import RecordedStep
from hookcli.table.columns.recorded import SETTINGS

_OF_STEPS = ("input", "dtype", "device", "mode")


class Settings:
    """Gathers the settings in which two runs differ; `see` takes the steps in their order."""

    def __init__(self, a: Record, b: Record) -> None:
        self._said: dict[str, str] = {}
        if a.header and b.header:
            ours, theirs = a.header, b.header
            self._note("command line", shlex.join(ours.argv) or ours.name, shlex.join(theirs.argv) or theirs.name)
            for name in dict.fromkeys((*ours.versions, *theirs.versions)):
                self._note(name, ours.versions.get(name), theirs.versions.get(name))

    def see(self, a: RecordedStep, b: RecordedStep) -> None:
        """Note the settings of a step, the first time that they differ."""
        ours, theirs = ({key: v for r in reversed(s.reports) for key, v in r.meta.items()} for s in (a, b))
        for key in _OF_STEPS:
            if key in ours and key in theirs:
                self._note(key, ours[key], theirs[key], a.step)
        settings, others = (dict(_groups(step)) for step in (a, b))
        for key in filter(others.__contains__, settings):
            self._note(key, settings[key], others[key], a.step)

    def line(self) -> str:
        """The differences in one line; "" if there are none."""
        return f"the runs differ: {'; '.join(self._said.values())}" if self._said else ""

    def _note(self, name: str, a: Any, b: object, step: int | None = None) -> None:
        if a != b and name not in self._said:
            since = f" (from step {step:,})" if step else ""
            self._said[name] = f"{name} {_text(a)} → {_text(b)}{since}"


def _groups(step: RecordedStep) -> Iterator[tuple[str, object]]:
    """The settings of each parameter group, by what they are called in a sentence."""
    for report in step.reports:
        rows = report.rows if report.probe == "optimizer" else ()
        for row in rows:
            where = f" of {row.get('optimizer')} group {row.get('group')}" if rows[1:] else ""
            for column in SETTINGS:
                if row.get(column.name) is not None:
                    yield f"{column.title.lower()}{where}", row[column.name]


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return "none" if value is None else str(value)
