"""The record of several ranks: a folder with a part for each, which reads as one record with merged steps.

    train.run/rank0.jsonl, train.run/rank1.jsonl, ...

A part is a record by itself (`hookcli.record.file.ranks.parts` names the files).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from hookcli.errors import UsageError
from hookcli.record.file.packing import SharedRows
from hookcli.record.file.ranks.merged_step import mean_loss, merge_steps
from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.reading import Keep, Record, read_record
from hookcli.record.file.record_lines import End, Key, ModelSettings, NonFinite, RecordedStep, StepEntry
from hookcli.system.files import exists, is_folder
from hookcli.table.losses import LossCourse

_PART = re.compile(r"rank(\d{1,9})\.jsonl")


def open_record(path: str | Path, source: Path | None = None) -> Record:
    """Read a record: a file, or a folder with a part for each rank. Raises UsageError if it is neither.

    `source` is the file that holds the lines, if not the one that messages name.
    """
    folder = folder_of(Path(path))
    return read_ranks(folder) if folder else read_record(path, source)


def folder_of(path: Path) -> Path | None:
    """The folder that a path names, or that stands in place of this file: `train.run` for `train.run.jsonl`."""
    if is_folder(path):
        return path
    instead = RecordFiles(path).folder
    return instead if not exists(path) and path.name and is_folder(instead) and part_files(instead) else None


def part_files(folder: Path) -> dict[int, Path]:
    """The ranks' parts in a folder. Raises UsageError if the folder can't be read."""
    try:
        parts = [(match, path) for path in folder.iterdir() if (match := _PART.fullmatch(path.name))]
    except OSError as error:
        raise UsageError(f"{folder}: can't be read as a record ({error.strerror})") from error
    return dict(sorted((int(match[1]), path) for match, path in parts))


def read_ranks(folder: Path) -> RankedRecord:
    """Read the record in a folder. Raises UsageError if no rank has a part in it."""
    record, files = RankedRecord(folder), part_files(folder)
    if not files:
        raise UsageError(f"{folder}: {no_parts(folder)}")
    for rank, path in files.items():
        try:
            record.parts[rank] = read_record(path, within=folder)
        except UsageError as error:
            record.unreadable[rank] = str(error)
    record.leave_out_earlier()
    if not record.parts:
        raise UsageError(next(iter(record.unreadable.values())))
    record.join()
    return record


def no_parts(folder: Path) -> str:
    """What is wrong with a folder that has no parts, and the records that it has."""
    others = sorted(path.name for path in folder.glob("*.jsonl"))
    records = f"; records in it: {', '.join(others[:5])}" if others else ""
    return f"is a folder without parts of a record (rank0.jsonl, rank1.jsonl, ...){records}"


@dataclass
class RankedRecord(Record):
    """A record of several ranks, each with one of the `parts`; its steps are merged.

    Call `join` after the parts have changed. `unreadable` says what is wrong with other ranks' parts.
    """

    parts: dict[int, Record] = field(default_factory=dict)
    unreadable: dict[int, str] = field(default_factory=dict)
    _held: set[_StepKey] = field(default_factory=set, repr=False)
    """The steps among `entries`."""
    _by_line: list[Mapping[int, StepEntry]] = field(default_factory=list, repr=False)
    """The entries of each step by rank, in the order of `entries`."""
    _keys: dict[int, set[Key]] = field(default_factory=dict, repr=False)
    """The models and phases that each rank has recorded."""

    @property
    def ranks(self) -> int:
        """The number of ranks that the program had."""
        ranks = [part.header.ranks for part in self.parts.values() if part.header]
        return max([*ranks, *(rank + 1 for rank in self.parts)])

    def leave_out_earlier(self) -> None:
        """Leave out parts of an earlier run, which had more ranks, in the same folder."""
        headers = {rank: part.header for rank, part in self.parts.items() if part.header}
        latest = max(headers.values(), key=lambda header: header.started, default=None)
        for rank, header in headers.items():
            if latest and latest.ranks <= rank and header.ranks != latest.ranks:
                del self.parts[rank]
                self.unreadable[rank] = f"it is of an earlier run, on {header.ranks:,} ranks"

    def missing(self) -> list[int]:
        """The ranks that have no part, or no readable one."""
        return [rank for rank in range(self.ranks) if rank not in self.parts]

    def join(self, *, growing: bool = False) -> None:
        """Take in what the parts hold by now; of a record that is `growing`, only steps to which no rank can add."""
        headers = [part.header for part in self.parts.values() if part.header]
        self.header = replace(headers[0], name=f"{headers[0].name} on {self.ranks:,} ranks") if headers else None
        self.non_finite = [value for _, value in self.non_finite_by_rank()]
        self.lines, self.of_parts, self.losses, self._keys = 0, [], [], {}
        settings: dict[str, ModelSettings] = {}
        for rank, part in self.parts.items():
            self.lines += part.lines
            self.of_parts += [line.of_rank(rank) for line in part.of_parts]
            self.losses += part.losses
            settings |= {line.model: line for line in part.settings}
            self._keys[rank] = {entry.key for entry in part.entries}
        self.settings = [*settings.values()]
        ended = all(part.end for part in self.parts.values()) and not (growing and self.missing())
        self._join_steps(growing and not ended)
        self.end = merged_end(self) if ended else None

    def _join_steps(self, growing: bool) -> None:
        """Take in the new steps; of a `growing` record those that every rank has, or is past, or has ended before."""
        for place, held in _steps(self.parts).items():
            if place in self._held:
                continue
            past = (rank in held or part.end or self._past(rank, held) for rank, part in self.parts.items())
            if growing and (self.missing() or not all(past)):
                continue
            self._held.add(place)
            self._by_line.append(held)
            number, complete = len(self._held), all(entry.complete for entry in held.values())
            errors = max(entry.errors for entry in held.values())
            first = next(iter(held.values()))
            self.entries.append(replace(first, line=number, offset=number, complete=complete, errors=errors))

    def _past(self, rank: int, held: Mapping[int, StepEntry]) -> bool:
        """True if a rank has a later step of this model and phase; of one without any, if the ranks that have it do.

        Models and phases each count their own steps, so other ones' steps don't tell how far a rank has come.
        """
        entry = next(iter(held.values()))
        return bool(self.parts[rank].entries) and all(
            next(one for one in reversed(self.parts[other].entries) if one.key == entry.key).step > entry.step
            for other in ([rank] if entry.key in self._keys[rank] else held)
        )

    def losses_of(self, model: str) -> dict[int, float]:
        """The loss of every step that all ranks have: the mean of theirs, which is the whole batch's."""
        ranks = [losses for part in self.parts.values() if (losses := part.losses_of(model))]
        shared = [step for step in ranks[0] if all(step in losses for losses in ranks)] if ranks else []
        return {step: mean_loss([losses[step] for losses in ranks]) for step in shared}

    def courses(self) -> dict[str, LossCourse]:
        courses = super().courses()
        for model, course in courses.items():
            if (step := course.jumped) is not None:
                of_ranks = {rank: part.losses_of(model) for rank, part in self.parts.items()}
                course.found_on({rank: losses[step] for rank, losses in of_ranks.items() if step in losses})
        return courses

    def non_finite_by_rank(self) -> list[tuple[int, NonFinite]]:
        """The first non-finite values of the ranks, the earliest first; in a step, what ranks have in common last."""
        values = [(rank, one) for rank, part in self.parts.items() for one in part.non_finite]
        return sorted(values, key=lambda item: (item[1].step, item[1].what == "parameter gradient", item[0]))

    def held(self, entry: StepEntry) -> Mapping[int, StepEntry]:
        """The ranks that have a step, with the entries in their parts."""
        return self._by_line[entry.line - 1]

    def counts(self, entry: StepEntry) -> bool:
        """True if a step is shown by default: all ranks have finished it, or it has the non-finite value."""
        return super().counts(entry if not self._without(entry) else replace(entry, complete=False))

    def _without(self, entry: StepEntry) -> list[int]:
        """Ranks that have other steps of this model and phase, but not this one."""
        held = self.held(entry)
        return [rank for rank, keys in self._keys.items() if entry.key in keys and rank not in held]

    def steps(self, entries: Iterable[StepEntry], keep: Keep | None = None) -> Iterator[RecordedStep]:
        """Load these steps one at a time, merged; one that is damaged on all ranks is left out."""
        for entry in entries:
            shared = SharedRows()
            in_arrays = ((rank, self.parts[rank].in_arrays(own, shared)) for rank, own in self.held(entry).items())
            loaded = self.steps_of_ranks(entry, keep) if keep else in_arrays
            if steps := {rank: step for rank, step in loaded if step}:
                yield merge_steps(steps, self._without(entry))
            else:
                self.damaged.append(entry.line)

    def steps_of_ranks(self, entry: StepEntry, keep: Keep | None = None) -> Iterator[tuple[int, RecordedStep]]:
        """Load a step as each rank has recorded it."""
        for rank, own in self.held(entry).items():
            for step in self.parts[rank].steps([own], keep):
                yield rank, step

    def written(self) -> float:
        """Time of the last write to a part, in seconds since the epoch."""
        return max(part.written() for part in self.parts.values())

    def damage(self) -> str | None:
        """One line on the lines of all parts that were left out."""
        damages = [f"rank {rank}: {damage}" for rank, part in self.parts.items() if (damage := part.damage())]
        return "; ".join(damages) or None


_StepKey = tuple[str, str, int, int | None, int]


def _steps(parts: Mapping[int, Record]) -> dict[_StepKey, dict[int, StepEntry]]:
    """The entries of all ranks by step, in the order in which ranks recorded them.

    A rank may record a step of one number twice: a GradScaler that skips a step repeats its number.
    """
    steps: dict[_StepKey, dict[int, StepEntry]] = {}
    order: dict[_StepKey, int] = {}
    for rank, part in parts.items():
        seen: Counter[object] = Counter()
        for number, entry in enumerate(part.entries):
            key = (entry.model, entry.phase, entry.step, entry.forward)
            place = (*key, seen[key])
            seen[key] += 1
            steps.setdefault(place, {})[rank] = entry
            order[place] = min(order.get(place, number), number)
    return {place: steps[place] for place in sorted(steps, key=order.__getitem__)}


def merged_end(record: RankedRecord) -> End:
    """The end of all ranks: the earliest failure, which others follow from, and the largest counts of models."""
    ends = {rank: part.end for rank, part in record.parts.items() if part.end}
    failed = (rank for rank, end in ends.items() if end.exit_code or end.error)
    rank = min(failed, key=lambda rank: ends[rank].seconds, default=next(iter(ends)))
    end = ends[rank]
    models: dict[str, dict[str, Any]] = {}
    for other in ends.values():
        for model in other.models:
            if model["forwards"] >= models.get(model["model"], model)["forwards"]:
                models[model["model"]] = dict(model)
    recorded = Counter((entry.model, entry.phase == "train") for entry in record.entries)
    for name, model in models.items():
        model |= {"recorded_steps": recorded[name, True], "recorded_forwards": recorded[name, False]}
    return replace(
        end,
        error=f"rank {rank}: {end.error}" if end.error else None,
        seconds=max(other.seconds for other in ends.values()),
        models=list(models.values()),
        notes=list(dict.fromkeys(chain.from_iterable(other.notes for other in ends.values()))),
        program_steps=max(other.program_steps for other in ends.values()),
    )
