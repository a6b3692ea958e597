"""hookcli run"""

from __future__ import annotations

import atexit
import os
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
from hookcli.record.launching.importing import when_imported
from hookcli.record.observe.plan import DEFAULT_EVERY, FIRST_BAD, PROBES, Plan, check_probes, parse_steps
from hookcli.system.escaping import shell_path
from hookcli.system.streams import aside, is_terminal, say, terminal_size
from hookcli.system.torchrun import leftover, world

if TYPE_CHECKING:
    from hookcli.record.observe.observer import Observer

OPTIONS = ()
EXAMPLES = (
    "hookcli run train.py --epochs 3",
    "hookcli run --every 10 --output run.jsonl train.py --epochs 3",
    "hookcli run --first-bad stop -m my_package.train",
)
SETTINGS = {"allow_interspersed_args": False}  # what comes after the script is the script's
_PANEL = "What is looked at"


def _option(*names: str, metavar: str | None = None, **settings: Any) -> Any:
    return typer.Option(*names, metavar=metavar, rich_help_panel=_PANEL, **settings)


def run(
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="The script, as python takes it.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="The script's own.", show_default=False)
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m.")] = False,
    every: Annotated[int, _option("--every", metavar="N", help="Look at every Nth step.", min=1)] = DEFAULT_EVERY,
    steps: Annotated[
        str | None, _option("--steps", metavar="A:B", help="Only from step A until before B; 0:1000, 500:.")
    ] = None,
    probe: Annotated[
        list[str] | None,
        _option("--probe", metavar="A,B,...", help=f"{', '.join(PROBES)}; inputs [the first three]."),
    ] = None,
    match: Annotated[
        str | None, _option("--match", metavar="GLOB", help="Only modules and parameters whose name matches.")
    ] = None,
    first_bad: Annotated[
        str | None,
        _option(
            "--first-bad",
            metavar="|".join(FIRST_BAD),
            help="Look at each step, and report the first NaN or Inf, or stop there (exit code 1).",
        ),
    ] = None,
    check: Annotated[
        bool, _option("--check", help="Judge the steps that are looked at, as hookcli check judges a model.")
    ] = False,
    max_seconds: Annotated[
        float | None, _option("--max-seconds", metavar="S", help="Look no longer; the script goes on.", min=0)
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The record [SCRIPT.run.jsonl, numbered].")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary on stderr.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Where hookcli itself fails, show all of it.")] = False,
    *,
    options: object,
) -> Ending:
    """Look inside a script that stays as it is.

    Runs it as python would, and records of the models that run in it: activations, gradients and the size of updates,
    per module, in every Nth step. Its output, its figures and its exit code are its own. hookcli show reads the record.
    """
    start, stop = parse_steps(steps)
    plan = Plan(
        every=every,
        start=start,
        stop=stop,
        max_seconds=max_seconds,
        probes=check_probes([name.strip() for text in probe or [",".join(PROBES)] for name in text.split(",")]),
        match=match,
        first_bad=first_bad,
        check=check,
    )
    found = find(script, module)
    if (said := leftover()) and not quiet:
        _say(said)
    if not world().writes:  # of several processes the first one is looked at
        return found.run(arguments or [])
    header = new_header(found.name, [script, *(arguments or [])], every)
    try:
        recorder = _recorder(output, found, header, debug)
    except OSError as error:
        if output:
            raise UsageError(f"can't write {output}: {error.strerror} (--output names another file)") from error
        _say(f"warning: can't write a record in this folder: {error.strerror}; the script runs, and is not looked at")
        return found.run(arguments or [])  # that the folder is full or gone is no reason to lose its run
    return _Run(found, plan, recorder, quiet, bool(output)).run(arguments or [])


@dataclass
class _Run:
    script: Script
    plan: Plan
    recorder: Recorder
    quiet: bool
    named: bool
    observer: Observer | None = None
    ending: Ending | None = None
    imports: ExitStack = field(default_factory=ExitStack)
    process: int = field(default_factory=os.getpid)

    def run(self, arguments: list[str]) -> Ending:
        """The script's threads and exit handlers may still run models: it is over when Python has ended these.

        To join the threads here would be to wait forever for those that Python wakes first, such as a pool's.
        """
        self.imports.enter_context(when_imported("torch", self._start))
        atexit.register(self._finish)  # before the script's own, and so after them
        self.ending = self.script.run(arguments)
        return replace(self.ending, finish=self._finish)

    def _start(self) -> None:
        try:
            from hookcli.record.observe.observer import Observer

            self.observer = Observer(self.plan, self.recorder).start()
        except Exception as error:  # the script must not fail by it
            self.recorder.gave_up(error)

    def _finish(self) -> None:
        """Not in a child of a fork, and not where the script never came to an end."""
        atexit.unregister(self._finish)
        if self.ending is None or os.getpid() != self.process:
            return
        self.imports.close()
        models, others, program_steps = [], {}, 0
        if self.observer is None:
            self.recorder.note("torch was never imported")
        else:
            self.observer.stop()
            models = [tally.ran() for tally in self.observer.models.tallies.values()]
            others, program_steps = dict(self.observer.models.others), self.observer.program_steps
            for note in self.observer.notes():
                self.recorder.note(note)
            if models and not any(model.windows or model.notes for model in models):
                steps = [model.steps or model.forwards + model.no_grad_forwards for model in models]
                self.recorder.note(self.plan.why_none(max(steps)))
        code, error = self.ending.exit_code, self.ending.error
        end = self.recorder.finish(code, error, models, others, steps=program_steps, keep=self.named)
        try:
            if not self.quiet and sys.__stderr__ is not None:
                aside(f"hookcli: {_summary(self.recorder, end)}\n", sys.__stderr__)
        except Exception as error:  # the exit code is the script's all the same
            see = f"hookcli show {shell_path(self.recorder.path)}"
            _say(f"warning: no summary ({type(error).__name__}: {error}); see {see}")
        keep_signal(self.ending)


def _summary(recorder: Recorder, end: End) -> str:
    shown = is_terminal(sys.__stderr__)
    width = terminal_size(sys.__stderr__).columns if shown else None
    color = shown and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return recorder.summary(end, _relative(recorder.path), width, color).rstrip("\n")


def _say(text: str) -> None:
    """On the stderr that the process began with: the script may have one of its own by now."""
    if sys.__stderr__ is not None:
        say(text, sys.__stderr__)


def _recorder(output: str | None, script: Script, header: Header, debug: bool) -> Recorder:
    """What keeps the record. Raises OSError, and leaves no numbered file, where its first line can't be written."""
    writer = RecordWriter(output) if output else RecordWriter.numbered(Path.cwd(), script.stem)
    try:
        return Recorder(writer, header, _say, debug)
    except OSError:
        if output:  # which may be a device
            writer.close()
        else:
            writer.remove()
        raise


def _relative(path: Path) -> str:
    """The shortest way to name it from here; the script may have moved, or deleted, the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(path)
