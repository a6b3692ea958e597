"""Receives what an observer records: writes it to the file at once, and keeps what the final summary needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

from hookcli.errors import in_brief
from hookcli.record.file.record_lines import (
    NOT_RECORDED,
    UNSEARCHED,
    End,
    Header,
    ModelSettings,
    NonFinite,
    PartLine,
    RecordedStep,
    StepLosses,
    is_spoiled,
)
from hookcli.record.file.views.run_lines import non_finite_line
from hookcli.record.file.writer import RecordWriter
from hookcli.system.torchrun import joined_world
from hookcli.table.losses import LossCourse


def new_header(name: str, argv: Sequence[str], every: int | None) -> Header:
    """The header of a record that begins now. Looks versions up without importing the packages."""
    versions = {"python": sys.version.split()[0]}
    for distribution in ("torch", "hookcli"):
        with suppress(PackageNotFoundError):
            versions[distribution] = version(distribution)
    return Header(name, list(argv), datetime.now(UTC).isoformat(timespec="seconds"), every or 0, versions)


class RecordSink:
    """A StepSink. Keeps only the last step of each model and phase, so memory does not grow with steps.

    `open_file` creates the file and writes the header, when there is something to write. `path` is its path, or the
    expected one until then. `began`: when the run began, by `perf_counter`, which all processes of a machine share.
    """

    announce = False
    """True to name the record when its first step is written: a program that is killed prints no summary."""

    def __init__(
        self,
        path: Path,
        open_file: Callable[[Header], RecordWriter],
        header: Header,
        say: Callable[[str], None],
        *,
        debug: bool = False,
        began: float | None = None,
    ) -> None:
        self.path = path
        self.kept = True
        self._failed = False
        self.latest: dict[tuple[str, str], RecordedStep] = {}
        self._open_file = open_file
        self._writer: RecordWriter | None = None
        self._header = header
        self._say = say
        self._debug = debug
        self._unwritten: list[StepLosses | ModelSettings] = []
        self._courses: dict[str, LossCourse] = {}
        self._non_finite: list[NonFinite] = []
        self._notes: list[str] = []
        self._began = perf_counter() if began is None else began

    @property
    def opened(self) -> bool:
        return self._writer is not None

    def open(self) -> RecordWriter:
        """Create the record's file, once. Raises OSError."""
        if self._writer is None:
            self._writer = self._open_file(self._header)
            self.path = self._writer.path
        return self._writer

    def begin_step(self) -> None:
        """See StepSink."""

    def step(self, step: RecordedStep) -> None:
        """Append a step. Raises OSError if the file can take no more."""
        self.open().write(replace(step, at=perf_counter() - self._began))
        self._write_others()
        if step.phase == "train":
            self._courses.setdefault(step.model, LossCourse()).updated(
                step.step, [row.values for row in step.rows("optimizer")]
            )
        if self.announce:
            self.announce = False
            self._say(f"recording in {self.path}")
        before = self.latest.get((step.model, step.phase))
        searched = [one for one in self._non_finite if one.cause != UNSEARCHED]
        is_bad = any((x.model, x.step, x.phase) == (step.model, step.step, step.phase) for x in searched)
        better = (step.complete and not is_spoiled(step, self._non_finite)) or not (before and before.complete)
        if is_bad or better or before is None:
            self.latest[step.model, step.phase] = step
        else:
            self.latest[step.model, step.phase] = before.with_verdict_of(step)

    def losses(self, losses: StepLosses) -> None:
        """Append the losses of steps, once there is a file. Raises OSError if it can take no more."""
        self._unwritten.append(losses)
        course = self._courses.setdefault(losses.model, LossCourse())
        course.add(losses.first, losses.values, taken=losses.taken, short=losses.short)
        if self.opened:
            self._write_others()

    def settings(self, settings: ModelSettings) -> None:
        """Append the settings of a model's modules, after its first step."""
        self._unwritten.append(settings)

    @property
    def lost(self) -> bool:
        """True if a loss was NaN or infinite."""
        return any(course.fault() for course in self._courses.values())

    @property
    def explained(self) -> bool:
        """True if the loss jumped before it was lost: a search would find that again, and nothing before."""
        return any(course.fault() and course.jumped_first for course in self._courses.values())

    @property
    def found_in_module(self) -> bool:
        """True if the first non-finite value was found in a module, or between modules: an operator there made it."""
        return any(one.fqn and one.what.startswith(("input", "output", "gradient")) for one in self._non_finite[:1])

    def _write_others(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for line in unwritten:
            self.open().write(line)

    def non_finite(self, value: NonFinite) -> None:
        """Append the first non-finite value, and say so at once: the program may run for hours more."""
        self._non_finite.append(value)
        self._say(non_finite_line(value))
        self.open().write(value)

    def of_part(self, line: PartLine) -> None:
        """Append the line of a part, and say its news at once. Raises OSError if the file can take no more."""
        if line.said and line.is_news:
            world = joined_world()
            self._say((line.of_rank(world.rank) if world.size > 1 else line).said)
        self.open().write(line)

    def gave_up(self, error: Exception) -> None:
        """Warn, once, that nothing is recorded from now on."""
        what = f"hookcli failed ({in_brief(error)}), which is a bug in hookcli"
        if isinstance(error, OSError):
            what = f"can't write {self.path}: {error.strerror}"
        self._failed = True
        self.left_out()
        self._notes.append(f"{what}; {NOT_RECORDED[0]}")
        self._say(f"warning: {what}; the program continues without being recorded")
        self._trace(error)

    def left_out(self) -> None:
        """Is called if something could not be recorded."""

    def part_failed(self, line: str, error: Exception) -> None:
        """Warn of a part that is left out from now on. The notes on its model say so, too."""
        self._say(f"warning: {line}")
        self._trace(error)

    def _trace(self, error: Exception) -> None:
        """Show where hookcli failed, if `--debug` asks."""
        if self._debug:
            import traceback

            self._say("".join(traceback.format_exception(error)).rstrip().replace("\n", "\n  "))

    def note(self, text: str) -> None:
        """Add a note on the whole run to its end; an empty one adds nothing."""
        self._notes += [text] if text else []

    def finish(self, exit_code: int | None, error: str | None, counts: Mapping[str, Any], *, keep: bool = True) -> End:
        """Write the last line, with an observer's `counts`, and close; no record without models unless `keep`."""
        end = End(exit_code, error, perf_counter() - self._began, **counts, notes=tuple(self._notes))
        self.kept = keep or bool(end.models) or self._failed
        if not self.kept and self._writer is None:
            return end
        problem = self.end_with(end)
        if problem:
            self.left_out()
        if self._writer is None:
            self.kept = False
        else:
            self.kept = self.kept or not self._writer.remove()
            if self.kept and not self._writer.in_place:
                self.kept = False
                self.left_out()
                note = f"{self.path} was deleted or replaced while the program ran; {NOT_RECORDED[1]}"
                end = replace(end, notes=(note, *end.notes))
                self._say(f"warning: {note}")
            self._writer.close()
        if problem and self.kept:
            self._say(f"warning: can't write {self.path}: {problem.strerror}; the record has no end")
        return end

    def end_with(self, end: End) -> OSError | None:
        """Write the last line, on a full disk in the room of the line that did not fit, or in brief."""
        problem = None
        for line in (end, end, replace(end, models=(), others={}, compiled={})):
            try:
                self.open()
                self._write_others()
                self.open().write(line)
                return None
            except OSError as error:
                problem = error
                if self._writer is None or not self._writer.cut_back():
                    break
        return problem
