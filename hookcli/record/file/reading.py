"""Reads a record back, also one that is damaged or still being written: what is whole, and how much is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from hookcli.errors import UsageError, shortened
from hookcli.record.file.record import FITS, LINES, RUN_SCHEMA, Bad, End, Header, Line, Window
from hookcli.report.files import require
from hookcli.system.escaping import shell_path
from hookcli.system.files import exists, is_file, is_folder

Key = tuple[str, str]
"""A model's name and a phase."""
Keep = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True, slots=True)
class Place:
    """A window in a file: which it is, and where its line is."""

    model: str
    phase: str
    step: int
    forward: int | None
    line: int
    offset: int
    complete: bool = True

    @property
    def key(self) -> Key:
        return self.model, self.phase


@dataclass
class Record:
    """What a record holds: of windows, which may be gigabytes, only where they are; `windows` loads them.

    `damaged`: the numbers, from 1, of lines that are not whole or not known.
    """

    path: Path
    header: Header | None = None
    places: list[Place] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    end: End | None = None
    damaged: list[int] = field(default_factory=list)
    lines: int = 0
    _read: set[int] = field(default_factory=set, repr=False)
    """The lines of the windows that have been loaded, or were found to be damaged then."""
    source: Path | None = None
    """Where its lines are, if not in the file at `path`: the copy of a pipe."""

    def add(self, offset: int, text: bytes) -> None:
        """Take in a line of the file. Raises UsageError for a header of a newer hookcli."""
        self.lines += 1
        if not text.strip():
            return
        try:
            data = json.loads(text)
            if data["line"] == Window.kind:
                self.places.append(_place(data, self.lines, offset))
            else:
                self._keep(_parsed(data, self.path))
        except _NOT_WHOLE:
            self.damaged.append(self.lines)

    def _keep(self, line: Line) -> None:
        match line:
            case Header():
                self.header = self.header or line
            case Bad():
                self.bad.append(line)
            case End():
                self.end = line

    def last(self, places: Iterable[Place] | None = None) -> Iterator[Window]:
        """The last window of each model and phase, in their order, of these places or all; a complete one if there is,
        or one in which something was not finite.

        In the place of one that is damaged, or in which nothing was measured, stands the last before it that is whole:
        to look for it from the end costs less than to read them all.
        """
        by_key: dict[Key, list[Place]] = {}
        for place in self.places if places is None else places:
            by_key.setdefault(place.key, []).append(place)
        for own in by_key.values():
            best_first = sorted(own, key=lambda place: (self.counts(place), place.offset), reverse=True)
            yield from islice((window for window in self.windows(best_first) if window.reports), 1)

    def counts(self, place: Place) -> bool:
        """Whether it is one to look at: its step came to an end, or it is where something was not finite."""
        return place.complete or any((b.model, b.phase, b.step) == (*place.key, place.step) for b in self.bad)

    def windows(self, places: Iterable[Place], keep: Keep | None = None) -> Iterator[Window]:
        """These windows, one at a time; one whose reports are damaged is left out and counted.

        `keep` tells by a row as JSON has it whether it is wanted: making rows is most of the work.
        """
        with (self.source or self.path).open("rb") as file:
            for place in places:
                self._read.add(place.line)
                file.seek(place.offset)
                try:
                    data = json.loads(file.readline())
                    for report in data["reports"] if keep else ():
                        report["rows"] = [row for row in report["rows"] if keep is None or keep(row)]
                    yield cast(Window, _parsed(data, self.path))
                except _NOT_WHOLE:
                    self.damaged.append(place.line)

    def said_of_damage(self) -> str | None:
        """One line on the lines that were left out: `2 of 31 lines are damaged and left out: 7, 31`.

        It says that there may be more, where windows turned out to be damaged and others have not been read.
        """
        if not self.damaged:
            return None
        numbers = sorted(set(self.damaged))
        verb = "is" if len(numbers) == 1 else "are"
        unread = any(place.line not in self._read for place in self.places)
        others = "; windows that are not shown were not checked" if unread and self._read & set(numbers) else ""
        return f"{len(numbers):,} of {self.lines:,} lines {verb} damaged and left out: {in_part(numbers)}{others}"


def in_part(numbers: Sequence[int]) -> str:
    """The first of these numbers, and how many more there are: `2, 3, 4, 5, 6 and 1,495 more`."""
    more = f" and {len(numbers) - _NAMED:,} more" if numbers[_NAMED:] else ""
    return ", ".join(map(str, numbers[:_NAMED])) + more


_NAMED = 5
_NOT_WHOLE = (ValueError, RecursionError, KeyError, TypeError, AttributeError)  # JSON's own errors are ValueErrors


def _place(data: Mapping[str, Any], line: int, offset: int) -> Place:
    place = Place(data["model"], data["phase"], data["step"], data["forward"], line, offset, data["complete"])
    require({key: data[key] for key in ("model", "phase", "step", "forward", "complete")}, FITS)
    return place


def _parsed(data: Mapping[str, Any], path: Path) -> Line:
    schema = data["schema"] if data["line"] == Header.kind else RUN_SCHEMA
    if schema > RUN_SCHEMA:
        raise UsageError(f"{path}: schema {schema} is of a newer hookcli; this one knows {RUN_SCHEMA}: upgrade it")
    return LINES[data["line"]].from_dict(data)


def read_record(path: str | Path, source: Path | None = None) -> Record:
    """The record in a file. Raises UsageError where there is none; what is damaged of one is left out and counted.

    `source` is where its lines are, if not in the file that messages name.
    """
    path = Path(path)
    record = Record(path, source=source)
    try:
        if not is_file(source or path):
            raise UsageError(f"{shortened(str(path))}: {_no_file(path)}")
        with (source or path).open("rb") as file:
            for offset, text in whole_lines(file, last=True):
                record.add(offset, text)
    except OSError as error:
        raise UsageError(f"{path}: can't be read as a record of a run ({error.strerror})") from error
    if not (record.header or record.places or record.bad or record.end):
        raise UsageError(f"{path}: {_not_a_record(path)}")
    return record


def whole_lines(file: BinaryIO, last: bool = False) -> Iterator[tuple[int, bytes]]:
    """The lines from where the file stands on, each with its offset. A last one without an end, which may still be
    written, only with `last`; else the file stands before it again."""
    offset = file.tell()
    for text in iter(file.readline, b""):
        if not (last or text.endswith(b"\n")):
            file.seek(offset)
            return
        yield offset, text
        offset += len(text)


def _no_file(path: Path) -> str:
    if is_folder(path):
        return "is a folder; give a record in it"
    return "is not a file" if exists(path) else "no such file (hookcli run writes records, named SCRIPT.run.jsonl)"


def _not_a_record(path: Path) -> str:
    if not path.stat().st_size:
        return "is empty: nothing was recorded, or not yet (--follow waits)"
    run = f"; `hookcli run {shell_path(path)}` makes one" if path.suffix == ".py" else ""
    return f"damaged, or not a record of a run: none of its lines is one of hookcli run's{run}"
