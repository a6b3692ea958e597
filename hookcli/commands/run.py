"""hookcli run"""

from __future__ import annotations

import atexit
import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hookcli.errors import UsageError
from hookcli.record.file.record import End, Header
from hookcli.record.file.recorder import Recorder, new_header
from hookcli.record.file.writer import RecordWriter
from hookcli.record.launching import Ending, Script, find
from hookcli.record.launching.ending import keep_signal
from hookcli.record.launching.import_hook import when_imported
from hookcli.record.observe.recording_plan import (
    DEFAULT_EVERY,
    FIRST_BAD,
    PROBES,
    RecordingPlan,
    check_probes,
    parse_no_grad,
    parse_steps,
)
from hookcli.system.escaping import shell_path
from hookcli.system.streams import aside, is_terminal, say, terminal_size
from hookcli.system.torchrun import leftover, world

if TYPE_CHECKING:
    from hookcli.record.observe.observer import Observer

EXAMPLES = (
    "hookcli run train.py --epochs 3",
    "hookcli run --every 10 --output run.jsonl train.py --epochs 3",
    "hookcli run --first-bad stop -m my_package.train",
)
SETTINGS = {"allow_interspersed_args": False}  # options after the script are the script's
_PANEL = "Recording"


def _option(*names: str, metavar: str | None = None, **settings: Any) -> Any:
    return typer.Option(*names, metavar=metavar, rich_help_panel=_PANEL, **settings)


@dataclass(frozen=True)
class RunOptions:
    """Options of `hookcli run`."""

    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m.")] = False
    every: Annotated[int, _option("--every", metavar="N", help="Record every Nth step.", min=1)] = DEFAULT_EVERY
    steps: Annotated[
        str | None, _option("--steps", metavar="A:B", help="Record from step A until before B; 0:1000, 500:.")
    ] = None
    probe: Annotated[
        list[str] | None,
        _option("--probe", metavar="A,B,...", help=f"{', '.join(PROBES)}; inputs [all but the last]."),
    ] = None
    match: Annotated[
        str | None, _option("--match", metavar="GLOB", help="Only modules and parameters whose name matches.")
    ] = None
    first_bad: Annotated[
        str | None,
        _option(
            "--first-bad",
            metavar="|".join(FIRST_BAD),
            help="Search every step for the first NaN or Inf, and report it or stop there (exit code 1).",
        ),
    ] = None
    keep_bad: Annotated[
        str | None,
        _option("--keep-bad", metavar="DIR", help="Keep the module of that value in DIR, and code that reproduces it."),
    ] = None
    check: Annotated[
        bool, _option("--check", help="Run checks on the recorded steps, as hookcli check does on a model.")
    ] = False
    no_grad: Annotated[
        str | None,
        _option("--no-grad", metavar="off|N", help="Forwards without gradients per recorded step of their model [1]."),
    ] = None
    hist: Annotated[
        bool, _option("--hist", help="Record histograms, too: quantiles, and shares outside float16 and float8.")
    ] = False
    max_seconds: Annotated[
        float | None,
        _option("--max-seconds", metavar="S", help="Stop recording after S seconds; the script continues.", min=0),
    ] = None
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The record [SCRIPT.run.jsonl, numbered].")
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary on stderr.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback if hookcli itself fails.")] = False

    def plan(self) -> RecordingPlan:
        """Return what to record and when. Raises UsageError."""
        start, stop = parse_steps(self.steps)
        return RecordingPlan(
            every=self.every,
            start=start,
            stop=stop,
            max_seconds=self.max_seconds,
            probes=check_probes([n.strip() for text in self.probe or [",".join(PROBES)] for n in text.split(",")]),
            match=self.match,
            first_bad=self.first_bad,
            check=self.check,
            no_grad=parse_no_grad(self.no_grad),
            hist=self.hist,
            keep_bad=str(Path(self.keep_bad).absolute()) if self.keep_bad is not None else None,
        )


def run(
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="The script to run, as for python.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's own arguments.", show_default=False)
    ] = None,
    *,
    own: RunOptions,
) -> Ending:
    """Record what happens inside the models of an unmodified script.

    Runs the script as python would, and records activations, gradients and the size of updates of each module in every
    Nth step. The script's output, results and exit code stay its own. `hookcli show` displays the record.
    """
    plan = own.plan()
    found = find(script, own.module)
    if (said := leftover()) and not own.quiet:
        _say(said)
    if not world().writes:  # of several processes only the first one is recorded
        return found.run(arguments or [])
    header = new_header(found.name, [script, *(arguments or [])], own.every)
    try:
        recorder = _recorder(own.output, found, header, own.debug)
    except OSError as error:
        if own.output:
            raise UsageError(f"can't write {own.output}: {error.strerror} (--output names another file)") from error
        _say(f"warning: can't write a record in this folder: {error.strerror}; the script runs without being recorded")
        return found.run(arguments or [])  # a folder that is full or gone is no reason not to run
    recorder.announce = not (own.quiet or is_terminal(sys.__stderr__))
    command = [*(["-m"] if own.module else []), script, *(arguments or [])]
    return _ScriptRun(found, plan, recorder, command, own.quiet, bool(own.output)).run(arguments or [])


@dataclass
class _ScriptRun:
    """Runs the script and observes it once it imports torch; ends the record when the process ends."""

    script: Script
    plan: RecordingPlan
    recorder: Recorder
    command: list[str]
    quiet: bool
    named: bool
    observer: Observer | None = None
    ending: Ending | None = None
    imports: ExitStack = field(default_factory=ExitStack)
    process: int = field(default_factory=os.getpid)

    def run(self, arguments: list[str]) -> Ending:
        """Run the script. Its threads and exit handlers may still run models, so the record ends after they do.

        Joining the threads here would wait forever for those that Python wakes first, such as a pool's.
        """
        self.imports.enter_context(when_imported("torch", self._start))
        atexit.register(self._finish)  # registered before the script's own, so called after them
        self.ending = self.script.run(arguments)
        return replace(self.ending, finish=self._finish)

    def _start(self) -> None:
        try:
            from hookcli.record.observe.observer import Observer

            self.observer = Observer(self.plan, self.recorder).start()
        except Exception as error:  # which must not end the script
            self.recorder.gave_up(error)

    def _finish(self) -> None:
        """End the record, unless this is a forked child or the script never came to an end."""
        atexit.unregister(self._finish)
        if self.ending is None or os.getpid() != self.process:
            return
        self.imports.close()
        models, others, program_steps, own = [], {}, 0, 0.0
        if self.observer is None:
            self.recorder.note("torch was never imported")
        else:
            self.observer.stop()
            models = list(self.observer.models.counts.values())
            others, program_steps = dict(self.observer.models.others), self.observer.program_steps
            own = self.observer.clock.own
            for note in self.observer.notes():
                self.recorder.note(note)
            if not self.plan.first_bad and self.observer.last_loss_is_nan():
                self.recorder.note(f"the last loss is NaN; `{self._search()}` finds the first value that is not finite")
            if models and not any(model.recorded_steps or model.notes for model in models):
                steps = [model.steps or model.forwards + model.no_grad_forwards for model in models]
                self.recorder.note(self.plan.why_none(max(steps)))
        code, error = self.ending.exit_code, self.ending.error
        end = self.recorder.finish(code, error, models, others, steps=program_steps, own=own, keep=self.named)
        try:
            if not self.quiet and sys.__stderr__ is not None:
                aside(f"hookcli: {_summary(self.recorder, end)}\n", sys.__stderr__)
        except Exception as error:  # the exit code must stay the script's
            see = f"hookcli show {shell_path(self.recorder.path)}"
            _say(f"warning: no summary ({type(error).__name__}: {error}); see {see}")
        keep_signal(self.ending)

    def _search(self) -> str:
        """The command that stops this script at its first non-finite value."""
        return shlex.join(["hookcli", "run", "--first-bad", "stop", *self.command])


def _summary(recorder: Recorder, end: End) -> str:
    shown = is_terminal(sys.__stderr__)
    width = terminal_size(sys.__stderr__).columns if shown else None
    color = shown and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return recorder.summary(end, _relative(recorder.path), width, color).rstrip("\n")


def _say(text: str) -> None:
    """Print to the stderr that the process began with: the script may have replaced sys.stderr."""
    if sys.__stderr__ is not None:
        say(text, sys.__stderr__)


def _recorder(output: str | None, script: Script, header: Header, debug: bool) -> Recorder:
    """Create the record. Raises OSError, and leaves no numbered file, if its first line can't be written."""
    writer = RecordWriter(output) if output else RecordWriter.numbered(Path.cwd(), script.stem)
    try:
        return Recorder(writer, header, _say, debug)
    except OSError:
        if output:  # not removed: it may be a device
            writer.close()
        else:
            writer.remove()
        raise


def _relative(path: Path) -> str:
    """The path relative to the working directory, which the script may have changed or deleted."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)
