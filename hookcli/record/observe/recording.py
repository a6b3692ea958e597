"""A record of a model that a program of one's own runs, for as long as it is wanted."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor, nn

from hookcli.record.file.record import Window
from hookcli.record.file.recorder import Recorder, new_header
from hookcli.record.file.writer import RecordWriter
from hookcli.record.observe.names import plain_type
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.plan import DEFAULT_EVERY, PROBES, Plan, check_probes, parse_steps
from hookcli.report import Report
from hookcli.system.streams import say
from hookcli.tensors.weak import WeakIds


class Recording:
    """What `hookcli run` does to a script, done to one model: from `start` to `stop`, or in a `with` block.

    Watched are calls of the model, of what wraps it and of its parts. Each `every`th step of its optimizer is looked
    at, of a model without one each `every`th forward, and goes into the file `output`, which `hookcli show` reads; by
    default `MODEL.run.jsonl` in the working directory, numbered. The other settings are the options of `hookcli run`.
    Raises UsageError for wrong ones, OSError where the file can't be made. What fails later is told in one warning and
    ends the recording, not the program.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        output: str | Path | None = None,
        every: int = DEFAULT_EVERY,
        steps: str | None = None,
        probes: str | Sequence[str] = PROBES,
        match: str | None = None,
        first_bad: str | None = None,
        max_seconds: float | None = None,
        check: bool = False,
    ) -> None:
        start, stop = parse_steps(steps)
        names = check_probes([probes] if isinstance(probes, str) else probes)
        plan = Plan(every, start, stop, max_seconds, names, match, first_bad, check)
        name = plain_type(model)
        writer = RecordWriter(output) if output is not None else RecordWriter.numbered(Path.cwd(), name)
        self._recorder = Recorder(writer, new_header(name, [], every), say)
        self._observer = Observer(plan, self._recorder, _part_of(model))

    @property
    def path(self) -> Path:
        """The record."""
        return self._recorder.path

    @property
    def latest(self) -> dict[tuple[str, str], Window]:
        """The last window of each model and phase."""
        return self._recorder.latest

    def reports(self) -> list[Report]:
        """What was seen last: of the last step that was looked at, and of the last forward without grad."""
        return [report for window in self.latest.values() for report in window.reports]

    def start(self) -> Self:
        """From now on, at the longest until the program ends."""
        self._observer.start()
        atexit.register(self._end)
        return self

    def stop(self, error: BaseException | None = None) -> None:
        """The record gets its end. Nothing happens where it has one."""
        if not self._observer.stop():
            return
        atexit.unregister(self._end)
        models = [tally.ran() for tally in self._observer.models.tallies.values()]
        for note in self._observer.notes():
            self._recorder.note(note)
        said = f"{type(error).__name__}: {error}" if error else None
        self._recorder.finish(int(error is not None), said, models, {}, steps=self._observer.program_steps)

    def _end(self) -> None:
        """The program ends: by an exception that Python has just shown, or well."""
        interactive = hasattr(sys, "ps1")  # there it goes on after exceptions
        self.stop(None if interactive else getattr(sys, "last_value", None))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(error)


class _part_of:  # noqa: N801 - a predicate
    """Whether a module holds a parameter of the model, without holding the model."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters: WeakIds[Tensor, None] = WeakIds()
        self._answers: WeakIds[nn.Module, bool] = WeakIds()
        for parameter in model.parameters():
            self._parameters[parameter] = None

    def __call__(self, module: nn.Module) -> bool:
        answer = self._answers.get(module)
        if answer is None:
            answer = self._answers[module] = any(p in self._parameters for p in module.parameters())
        return answer
