"""Records one model inside a program of the caller's: around its own loop, or as the base of a framework's callback."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from weakref import ref

from torch import Tensor, nn

from hookcli.hooks.torch_private.distributed import group_name
from hookcli.hooks.torch_private.dynamo import is_compiled_in_place
from hookcli.record.arguments import arguments, check_arguments
from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.record_lines import Header, RecordedStep
from hookcli.record.file.writer import RecordWriter
from hookcli.record.observe.naming import plain_type
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import (
    NO_GRAD,
    PROBES,
    RecordingPlan,
    check_probes,
    given_options,
    parse_steps,
)
from hookcli.record.record_sink import RecordSink, new_header
from hookcli.registry.capability import search_option
from hookcli.reporters.report_page import ReportList
from hookcli.system.escaping import shell_path
from hookcli.system.files import is_folder
from hookcli.system.streams import say
from hookcli.system.torchrun import joined_world, run_name
from hookcli.tensors.weak import WeakIds


class ModelRecording:
    """Records one model as `hookcli run` records a script, from `start` to `stop` or in a `with` block.

    Observes calls of the model, of its wrappers and of its parts. One in `every` steps of its optimizer (or forwards,
    without one) goes into the file `output`, which `hookcli show` reads; by default the first steps and then fewer, as
    their time allows, and the file is `MODEL.run.jsonl` in the working directory, numbered. Each of several ranks
    records its part, `rank0.jsonl` and so on, in the folder `MODEL.run`, or in one named by `output` (`run` for
    `run.jsonl`). The other settings are the options of `hookcli run`; `of_parts` those that its help has besides.
    Raises UsageError for invalid ones, OSError if the file can't be created. A later failure ends the recording with
    one warning, not the program.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        output: str | Path | None = None,
        every: int | None = None,
        steps: str | None = None,
        probes: str | Sequence[str] = PROBES,
        match: str | None = None,
        max_seconds: float | None = None,
        check: bool = False,
        hist: bool = False,
        no_grad: int = NO_GRAD,
        ops: str | None = None,
        time: bool = False,
        **of_parts: Any,
    ) -> None:
        settings = {name: value for name, value in locals().items() if name not in ("self", "__class__", "of_parts")}
        check_arguments(ModelRecording, settings | of_parts)
        every = None if every is None else int(every)  # NumPy's integers can't be written as JSON
        start, stop = parse_steps(steps)
        names = check_probes([probes] if isinstance(probes, str) else probes)
        plan = RecordingPlan(
            every,
            start,
            stop,
            max_seconds,
            names,
            match,
            check,
            hist,
            no_grad,
            time,
            ops=ops,
            of_parts=given_options(of_parts),
        )
        name = plain_type(model)
        header = new_header(name, [], every)
        self._sink = RecordSink(Path(output or name), lambda header: _opened(output, name, header), header, say)
        self._sink.open()
        self._plan = plan
        self._observer = Observer(plan, self._sink, _shares_parameters(model))
        parts = model.modules() if self._observer.sees_inside else ()
        self._in_place = [ref(part) for part in parts if is_compiled_in_place(part)]

    @property
    def path(self) -> Path:
        """The record's file; of a rank, its part."""
        return self._sink.path

    @property
    def record(self) -> Path:
        """The record that `hookcli show` reads: the file, or the folder of all ranks."""
        return self.path.parent if joined_world().size > 1 else self.path

    @property
    def latest(self) -> dict[tuple[str, str], RecordedStep]:
        """The last recorded step of each model and phase."""
        return self._sink.latest

    def reports(self) -> ReportList:
        """The reports of the last recorded step, and of the last recorded forward without gradients."""
        return ReportList(report for step in self.latest.values() for report in step.reports)

    def _repr_html_(self) -> str:
        """The page of the record so far in a frame, which notebooks show."""
        from hookcli.record.file.page.record_page import frame

        return frame(self.record)

    def start(self) -> Self:
        """Begin to record; ends with `stop` or with the program."""
        self._observer.start()
        for part in self._in_place:
            self._observer.compiled_before(part())
        atexit.register(self._end)
        return self

    def stop(self, error: BaseException | None = None) -> None:
        """End the record, with the exception that ended the training. Does nothing if it has ended."""
        if not self._observer.stop():
            return
        atexit.unregister(self._end)
        search = search_option()
        if self._sink.lost and search and not self._plan.searches:
            self._sink.note(f"{search.name}={search.searches!r} finds the first value that is not finite")
        for note in (*self._observer.notes(), *self._observer.child_notes()):
            self._sink.note(note)
        text = f"{type(error).__name__}: {error}" if error else None
        self._sink.finish(int(error is not None), text, self._observer.totals())

    def _end(self) -> None:
        """The program ends, perhaps by an exception that Python has just shown."""
        interactive = hasattr(sys, "ps1")  # a session that continues after exceptions
        self.stop(None if interactive else getattr(sys, "last_value", None))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.stop(error)


def _shares_parameters(model: nn.Module) -> Callable[[nn.Module], bool]:
    """A test whether a module shares a parameter with the model, which does not keep the model alive."""
    parameters: WeakIds[Tensor, None] = WeakIds()
    answers: WeakIds[nn.Module, bool] = WeakIds()
    for parameter in model.parameters():
        parameters[parameter] = None

    def shares(module: nn.Module) -> bool:
        answer = answers.get(module)
        if answer is None:
            answer = answers[module] = any(p in parameters for p in module.parameters())
        return answer

    return shares


def _opened(output: str | Path | None, name: str, header: Header) -> RecordWriter:
    """Create the record of this process: `output`, else `NAME.run.jsonl`, numbered; of a rank its part in a folder.

    The folder is `output` (`run.jsonl` stands for `run/`), else `NAME.run/`, numbered. Ranks that no common parent has
    told a name agree on one without talking to each other: the first one there creates the folder, with a note in it
    which launch it belongs to. Raises OSError.
    """
    here = joined_world()
    numbered = Path.cwd() / f"{name}.run.jsonl"
    if here.size == 1:
        return RecordFiles(numbered).take(header) if output is None else RecordWriter(output).begun(header)
    if output is None:
        launch = f"{run_name()} {group_name()}".strip() or f"launcher={os.getppid()}"  # if nothing tells launches apart
        return RecordFiles(numbered, launch).rank(here.rank, header)
    path = Path(output).absolute()
    folder = path if path.suffix == ".run" or is_folder(path) else RecordFiles(path).folder
    folder.mkdir(exist_ok=True)
    header = replace(header, rank=here.rank, ranks=here.size)
    return RecordWriter(folder / f"rank{here.rank}.jsonl").begun(header)


class RecordingCallback:
    """Records a training with the `settings` of `hookcli.watch`, such as `every=100` and `output`.

    Each of several ranks records its part. `recording` belongs to the last training; None before it. Raises TypeError
    for an unknown setting and, when the training begins, UsageError for an invalid value.
    """

    def __init__(self, **settings: Any) -> None:
        for name in settings.keys() - (arguments(ModelRecording).keys() - {"model"}):
            raise TypeError(f"unexpected keyword argument {name!r}")
        self.recording: ModelRecording | None = None
        self._settings = settings

    def stop(self, error: BaseException | None = None) -> None:
        """End the record, with the exception that ended the training. Does nothing if it has ended."""
        if self.recording is not None:
            self.recording.stop(error)

    def _start(self, model: nn.Module) -> None:
        self.stop()  # an earlier training whose end was not reported
        try:
            self.recording = ModelRecording(model, **self._settings)
        except OSError as error:  # a record is no reason to lose a training
            say(f"warning: can't write {error.filename}: {error.strerror}; the training is not recorded")
            self.recording = None
            return
        self.recording.start()
        if joined_world().rank == 0:
            say(f"recording the training; see it with: hookcli show {shell_path(self.recording.record)}")

    def __getstate__(self) -> dict[str, object]:
        """Only the settings: a callback sent to another process records there."""
        return vars(self) | {"recording": None}
