"""Reads a record back, even if it is damaged or still being written; damaged lines are left out and counted."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar, cast

from hookcli.errors import UsageError, shortened
from hookcli.record.file.packing import Layout, Recent, SharedRows, unpack, unpack_layout
from hookcli.record.file.parsing import FITS, KINDS, parsed, whole_line, whole_lines
from hookcli.record.file.record_lines import (
    LAYOUT,
    End,
    Header,
    Key,
    Line,
    ModelSettings,
    NonFinite,
    PartLine,
    RecordedStep,
    StepEntry,
    StepLosses,
    is_spoiled,
)
from hookcli.system.escaping import shell_path
from hookcli.system.files import exists, is_file, is_folder, opened
from hookcli.table.formatting import counted
from hookcli.table.formatting import listed as listed_text
from hookcli.table.losses import EARLY, LossCourse
from hookcli.table.validation import is_mapping, listed, require

Keep = Callable[[Mapping[str, Any]], bool]
T = TypeVar("T")
P = TypeVar("P", bound=PartLine)


@dataclass
class Record:
    """A record in memory: of its steps, which may be gigabytes, only the index; `steps` loads them.

    `damaged` holds the numbers, from 1, of the lines that are incomplete or unknown; `cut` is the last line if it ends
    in its middle, as when the process was killed or the disk full.
    """

    path: Path
    header: Header | None = None
    entries: list[StepEntry] = field(default_factory=list)
    non_finite: list[NonFinite] = field(default_factory=list)
    of_parts: list[PartLine] = field(default_factory=list)
    losses: list[StepLosses] = field(default_factory=list)
    settings: list[ModelSettings] = field(default_factory=list)
    end: End | None = None
    damaged: list[int] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)
    """The number of lines by kinds of capabilities that are not here."""
    cut: bytes = b""
    lines: int = 0
    _read: set[int] = field(default_factory=set, repr=False)
    """The lines of the steps that were loaded, or found damaged while loading."""
    source: Path | None = None
    """The file that holds the lines, if not `path`: the copy of a pipe."""
    within: Path | None = None
    """The folder whose part it is, which a link must not lead out of."""
    _layouts: dict[int, int] = field(default_factory=dict, repr=False)
    """The offsets of the lines that define layouts, by number."""
    _courses: tuple[tuple[int, int], dict[str, LossCourse]] = field(default=((-1, -1), {}), repr=False, compare=False)
    """The numbers of lines of losses and of steps, and the courses by then."""
    _known: Recent[int, Layout] = field(default_factory=Recent, repr=False)
    """The layouts that were used last."""

    @classmethod
    def unkept(cls, header: Header, non_finite: Iterable[NonFinite], courses: Mapping[str, LossCourse]) -> Self:
        """Make the record of a run whose file is gone, from what its process still knows."""
        return cls(Path(), header, non_finite=[*non_finite], _courses=((0, 0), {**courses}))

    def add(self, offset: int, text: bytes) -> None:
        """Add a line of the file. Raises UsageError for the header of a newer hookcli."""
        self.lines += 1
        if not text.strip():
            return
        try:
            data = json.loads(text)
            if data["line"] == LAYOUT:
                self._layouts[data["id"]] = offset
            elif data["line"] == RecordedStep.kind:
                indexed = {name: data[name] for name in _INDEXED if name in data}
                require(indexed, FITS[StepEntry])
                self.entries.append(StepEntry(**indexed, line=self.lines, offset=offset))
            elif data["line"] not in KINDS and data.keys() >= {"model", "step"} and _KIND.fullmatch(data["line"]):
                self.unread[data["line"]] += 1
            else:
                self._keep(parsed(data, self.path))
        except _NOT_WHOLE:
            cut = not text.endswith(b"\n") and _BEGIN[: len(text)] == text[: len(_BEGIN)]
            self.cut = text if cut else self.cut
            self.damaged += [] if cut else [self.lines]

    def _keep(self, line: Line) -> None:
        match line:
            case Header():
                self.header = self.header or line
            case End():
                self.end = line
            case _:
                getattr(self, _LISTS.get(type(line), "of_parts")).append(line)

    def of(self, kind: type[P]) -> list[P]:
        """The lines of this kind that a part of a capability has written."""
        return [line for line in self.of_parts if isinstance(line, kind)]

    def losses_of(self, model: str) -> dict[int, float]:
        """The loss of every step of a model, as far as it is known; empty in records before schema 3."""
        lines = (line for line in self.losses if line.model == model and line.taken)
        numbered = (item for line in lines for item in enumerate(line.values, line.first))
        return {step: loss for step, loss in numbered if loss is not None}

    @property
    def ran(self) -> Mapping[str, Mapping[str, Any]]:
        """The counts of each model (ModelRun); none before the record has its end."""
        return {model["model"]: model for model in (self.end.models if self.end else ())}

    def trained(self) -> list[str]:
        """The models that were trained: with recorded training steps, or with losses alone."""
        recorded = (entry.model for entry in self.entries if entry.phase == "train")
        return [*dict.fromkeys([*recorded, *(line.model for line in self.losses)])]

    def courses(self) -> dict[str, LossCourse]:
        """The course of the loss of each model that was trained; not computed again as long as there are no new lines.

        Each command and each part asks for it, and of a million steps it takes seconds.
        """
        read = len(self.losses), len(self.entries)
        if self._courses[0] == read:
            return self._courses[1]
        courses = dict[str, LossCourse]()
        for model in dict.fromkeys(line.model for line in self.losses):
            short = {step for line in self.losses if line.model == model for step in line.short}
            courses[model] = LossCourse.of(self.losses_of(model), short)
        for line in self.losses:
            if not line.taken:
                courses[line.model].add(line.first, line.values, taken=False)
                continue
            for step in (n for n, value in enumerate(line.values, line.first) if value is None):
                courses[line.model].add(step, [None])
        self._add_updates(courses)
        self._courses = read, courses
        return courses

    def _add_updates(self, courses: Mapping[str, LossCourse]) -> None:
        """Add the large updates of the first steps, whose reports are read only where they may say something."""
        looked_at = {model: one.jumped for model, one in courses.items() if one.climbs or one.jumped is not None}
        of_these = [entry for entry in self.entries if entry.phase == "train" and entry.model in looked_at]
        entries = [entry for entry in of_these if entry.step < EARLY or entry.step + 1 == looked_at[entry.model]]
        if not entries:  # the file need not exist yet
            return
        for step in self.steps(entries, lambda row: "optimizer" in row):
            courses[step.model].updated(step.step, [row.values for row in step.rows("optimizer")])

    def last(self, entries: Iterable[StepEntry] | None = None) -> Iterator[RecordedStep]:
        """The last step of each model and phase, among these entries or all.

        Complete steps and those with non-finite values come first, before those that follow a loss that was not finite.
        A damaged or empty step is replaced by the last good one before it: reading from the end costs less than all.
        """
        by_key: dict[Key, list[StepEntry]] = {}
        for entry in self.entries if entries is None else entries:
            by_key.setdefault(entry.key, []).append(entry)
        for own in by_key.values():
            best_first = sorted(own, key=lambda e: (not self.counts(e), is_spoiled(e, self.non_finite), -e.offset))
            best = next((step for step in self.steps(best_first) if step.reports), None)
            last = max(own, key=lambda entry: entry.offset)
            if best and last is not best_first[0]:
                best = next(map(best.with_verdict_of, self.steps([last])), best)
            yield from [best] if best else []

    def counts(self, entry: StepEntry) -> bool:
        """True if to show a step by default: it was finished, or it has the non-finite value."""
        non_finite = [(one.model, one.phase, one.step) for one in self.non_finite]
        return entry.complete or (*entry.key, entry.step) in non_finite

    def finished(self, entries: Sequence[StepEntry]) -> list[StepEntry]:
        """The entries of steps that are finished or have a non-finite value; all of a model and phase without any."""
        whole = {entry.key for entry in entries if self.counts(entry)}
        return [entry for entry in entries if self.counts(entry) or entry.key not in whole]

    def steps(self, entries: Iterable[StepEntry], keep: Keep | None = None) -> Iterator[RecordedStep]:
        """Load these steps one at a time, leaving out and counting the damaged ones.

        `keep` tells from a row's JSON whether it is wanted: building rows is most of the work.
        """
        with opened(self.source or self.path, self.within) as file:
            for entry in entries:
                data = self._whole(entry, partial(self._unpacked, file, entry))
                if data is not None:
                    for report in data["reports"] if keep else ():
                        report["rows"] = list(filter(keep, report["rows"]))
                    if step := self._whole(entry, partial(parsed, data, self.path)):
                        yield cast(RecordedStep, step)

    def _unpacked(self, file: BinaryIO, entry: StepEntry) -> Any:
        """The JSON of a step's line, each row of its reports a mapping."""
        data = _line(file, entry.offset)
        if isinstance(data["reports"], str):  # reports of schema 1 are not packed
            data["reports"] = unpack(data["reports"], partial(self._layout, file))
        for report in data["reports"]:
            require({"row": report["rows"]}, {"row": listed(is_mapping)})
        return data

    def in_arrays(self, entry: StepEntry, shared: SharedRows) -> RecordedStep | None:
        """Load a step with its statistics in arrays, for merging; None if it is damaged. `shared`: with other ranks."""
        return self._whole(entry, partial(self._measured, entry, shared))

    def _measured(self, entry: StepEntry, shared: SharedRows) -> RecordedStep:
        with opened(self.source or self.path, self.within) as file:
            data = _line(file, entry.offset)
            packed = isinstance(data["reports"], str)
            step = cast(RecordedStep, parsed({**data, "reports": []} if packed else data, self.path))
            layout = partial(self._layout, file, shared=shared)
            return replace(step, reports=[*shared.unpack(data["reports"], layout)]) if packed else step

    def _whole(self, entry: StepEntry, read: Callable[[], T]) -> T | None:
        """Read a step's line, counting it as damaged if `read` fails, which only decodes and checks."""
        self._read.add(entry.line)
        try:
            return read()
        except _NOT_WHOLE:
            self.damaged.append(entry.line)
            return None

    def _layout(self, file: BinaryIO, number: int, shared: SharedRows | None = None) -> Layout:
        """The layout of this number, read once."""
        known = self._known.get(number)
        if known is None:
            text = _line(file, self._layouts[number])["layout"]
            known = shared.layout(text) if shared else unpack_layout(text)
            self._known.add(number, known, len(known.kinds))
        return known

    def written(self) -> float:
        """Time of the last write, in seconds since the epoch."""
        return self.path.stat().st_mtime

    def damage(self) -> str | None:
        """One line on the lines that were left out: `2 of 31 lines are damaged and left out: 7, 31`.

        Says so if steps turned out to be damaged and others have not been read, and if the last line is cut.
        """
        texts = []
        if numbers := sorted(set(self.damaged)):
            verb = "is" if len(numbers) == 1 else "are"
            unread = any(entry.line not in self._read for entry in self.entries)
            others = "; steps that are not shown were not checked" if unread and self._read & set(numbers) else ""
            texts.append(
                f"{len(numbers):,} of {self.lines:,} lines {verb} damaged and left out: {listed_text(numbers)}{others}"
            )
        if self.cut:
            what = f": step {int(step[1]):,} is incomplete" if (step := _STEP.search(self.cut)) else ""
            texts.append(f"the last line is cut (killed, disk full, or still being written){what}")
        if self.unread:
            lines, kinds = counted(self.unread.total(), "line"), listed_text([*map(repr, self.unread)])
            texts.append(f"{lines} left out: no capability here reads {kinds}")
        return "; ".join(texts) or None


_LISTS = {NonFinite: "non_finite", StepLosses: "losses", ModelSettings: "settings"}
_KIND = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_BEGIN = b'{"line":'
_STEP = re.compile(rb'"line": ?"step".*?"step": ?(\d{1,15}),')
_INDEXED = [item.name for item in fields(StepEntry) if item.name not in ("line", "offset")]
_NOT_WHOLE = (ValueError, RecursionError, KeyError, TypeError, AttributeError)  # JSON's own errors are ValueErrors


def _line(file: BinaryIO, offset: int) -> Any:
    """The JSON in the line at this offset."""
    file.seek(offset)
    return json.loads(whole_line(file))


def read_record(path: str | Path, source: Path | None = None, within: Path | None = None) -> Record:
    """Read the record in a file; see Record for `source` and `within`. Raises UsageError if it is none."""
    record = Record(path := Path(path), source=source, within=within)
    try:
        if not is_file(source or path):
            why = "no such file (hookcli run writes records named SCRIPT.run.jsonl)"
            if exists(path):
                why = "is a folder; give a record in it" if is_folder(path) else "is not a file"
            raise UsageError(f"{shortened(str(path))}: {why}")
        with opened(source or path, within) as file:
            for offset, text in whole_lines(file, last=True):
                record.add(offset, text)
    except OSError as error:
        raise UsageError(f"{path}: can't be read as a record ({error.strerror})") from error
    if not (record.header or record.entries or record.non_finite or record.end):
        run = f"; `hookcli run {shell_path(path)}` records this script" * (path.suffix == ".py")
        why = f"not a record, or damaged: none of its lines is one that hookcli run writes{run}"
        if record.cut and record.lines == 1:
            why = "its first line is cut (killed, or disk full): nothing has been recorded"
        elif not path.stat().st_size:
            why = "is empty: nothing has been recorded (--follow waits)"
        raise UsageError(f"{path}: {why}")
    return record
