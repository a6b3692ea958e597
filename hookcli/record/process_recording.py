"""Records the process that it runs in, which is one of a program that `hookcli run` has started.

Its record is opened when there is something to write, and ended when Python ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing import parent_process, util
from pathlib import Path
from traceback import format_exception_only
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hookcli import registry
from hookcli.errors import in_brief, shortened
from hookcli.record.file.ranks.parts import RecordFiles
from hookcli.record.file.ranks.ranked_record import RankedRecord, open_record
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import End, Header, PartLine, RecordedStep
from hookcli.record.file.views.summary import summary
from hookcli.record.file.writer import RecordWriter
from hookcli.record.launching.launched import Launched
from hookcli.record.record_sink import RecordSink, new_header
from hookcli.registry.capability import search_option
from hookcli.system.escaping import shell_path
from hookcli.system.files import relative
from hookcli.system.interrupts import ignored
from hookcli.system.streams import aside, asked, encodable, is_terminal, say, takes_color, terminal_size
from hookcli.system.torchrun import World, joined_world
from hookcli.table.grouping import View

if TYPE_CHECKING:
    from torch.optim.optimizer import Optimizer

    from hookcli.record.observe.observer import Observer


def start(data: Mapping[str, Any]) -> Callable[[], object]:
    """Start recording this process, which has just imported torch. Returns the function to call at its end."""
    run = Launched(**data).joined()
    process = ProcessRecording(run)
    process.begin(optimizers=(), child=run.is_child)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=process.forked)
    return process.end


def end_without_torch(data: Mapping[str, Any]) -> None:
    """End the record of a program that has never imported torch."""
    sink = ProcessSink(Launched(**data).joined())
    sink.note("torch was never imported")
    sink.end()


class ProcessRecording:
    """Records this process. A forked child gets a new recording, unless it serves its parent."""

    def __init__(self, run: Launched) -> None:
        self._run = run
        self._observer: Observer | None = None
        self._sink: ProcessSink | None = None

    def begin(self, optimizers: Iterable[Optimizer], *, child: bool) -> None:
        from hookcli.record.observe.observer import Observer
        from hookcli.record.observe.recording_plan import RecordingPlan

        self._sink = ProcessSink(self._run, child=child, ended=self.end)
        self._plan = RecordingPlan(**self._run.plan)
        self._observer = Observer(self._plan, self._sink).start(optimizers)

    def forked(self) -> None:
        """Begin anew in a forked child, in which the observer is off."""
        before, self._observer, self._sink = self._observer, None, None
        if before is not None and not before.serves_parent:
            try:
                self.begin(list(before.optimizer_steps), child=True)
            except Exception as error:  # it must not become the program's
                say_aside(f"warning: hookcli failed in a child process ({in_brief(error)})")

    @ignored()
    def end(self) -> None:
        """Stop observing, and end the record. Does nothing the second time."""
        observer, sink = self._observer, self._sink
        self._observer = self._sink = None
        if observer is None or sink is None:
            return
        observer.stop()
        for note in observer.notes():
            sink.note(note)
        unsearched = sink.lost and not sink.explained and not self._plan.searches
        if search_option() and (unsearched or (sink.found_in_module and not self._plan.ops)):
            sink.note(f"Next: {self._run.search()}")
        models = list(observer.models.counts.values())
        if models and not any(model.is_told_of for model in models):
            steps = [model.steps or model.forwards + model.no_grad_forwards for model in models]
            sink.note(self._plan.why_none(max(steps)))
        sink.end(observer.totals(), by_part=observer.ended_by_part)


class ProcessSink(RecordSink):
    """Records the program, a rank, or a child that trains; `ended` is called when a multiprocessing child ends."""

    def __init__(self, run: Launched, *, child: bool = False, ended: Callable[[], object] = lambda: None) -> None:
        self._run = run
        self._files = RecordFiles(Path(run.record), run.launch, run.reserved)
        self._is_child = child
        self._has_loaded = False
        self._ended = ended
        self._world = World()
        self._group = ""
        self._inherited = joined_world()  # in a child: its parent's; it has not joined its own ranks yet
        header = replace(new_header(run.name, run.argv, run.plan["every"]), process=run.process)
        super().__init__(self._files.record, self._open, header, say_aside, debug=run.debug, began=run.began)
        self.announce = not (run.quiet or is_terminal(sys.__stderr__))

    @property
    def _child(self) -> bool:
        """True in a child process. A new interpreter learns that it is one after it has imported torch."""
        return self._is_child or parent_process() is not None

    @property
    def _is_rank(self) -> bool:
        """True in a process that has joined others as a rank: one of a launcher, of a program that starts ranks."""
        return self._world.size > 1 and not (self._child and self._inherited.size > 1)

    @property
    def _prints_summary(self) -> bool:
        """True in the program and in the first rank, which print a summary; children don't."""
        return self._world.rank == 0 and (self._is_rank or not self._child)

    def left_out(self) -> None:
        """Tell the process that judges the record: it sees whether its file is still there."""
        if self._run.witness:
            with suppress(OSError):
                Path(self._run.witness).unlink()

    def begin_step(self) -> None:
        """See StepSink. Ranks meet in a step, if not before: none of them has ended yet, nor has their store."""
        if not (self._group or self.opened) and self._inherited.size == 1 < joined_world().size:
            from hookcli.hooks.torch_private.distributed import group_name

            self._group = group_name()

    def step(self, step: RecordedStep) -> None:
        """See RecordSink. A child that has not trained yet may only serve its parent."""
        if self.opened or not self._child or (step.phase == "train" and not self._loads_data):
            super().step(step)

    def of_part(self, line: PartLine) -> None:
        """See RecordSink. Parts of a process that loads its parent's data have nothing to say of its steps."""
        if self.opened or not self._loads_data:
            super().of_part(line)

    @property
    def _loads_data(self) -> bool:
        """True in a process that makes a DataLoader's batches, and once it has made them."""
        data = sys.modules.get("torch.utils.data")
        self._has_loaded = self._has_loaded or (data is not None and data.get_worker_info() is not None)
        return self._has_loaded

    def _open(self, header: Header) -> RecordWriter:
        self._world = joined_world()
        self.announce = self.announce and self._prints_summary
        if parent_process() is not None:
            util.Finalize(None, self._ended, exitpriority=-1)
        if self._world.size > 1 and (self._inherited.size > 1 or self._group or not self._child):
            joined = self._inherited.size == 1
            self._run = self._run.among_ranks(self._group) if joined else self._run.of_environment()
            self._files = replace(self._files, launch=self._run.launch)
        if self._is_rank:
            return self._files.rank(self._world.rank, header)
        return self._files.child(os.getpid(), header) if self._child else self._files.take(header)

    def end(self, counts: Mapping[str, Any] = MappingProxyType({"models": []}), *, by_part: bool = False) -> None:
        """End the record of this process, if it has one, and print the summary of the program. See `finish`.

        `by_part`: a part has asked to end the program.
        """
        prints = self._prints_summary
        parts = "" if self._child else self._parts_of_children()
        trained = self.opened or bool(counts["models"] and not self._child)
        if trained or (os.getpid() == self._run.process and self._files.untaken and not parts):
            code, error = _uncaught()
            self.note(parts)
            if not trained and self._run.meant and error is None:  # perhaps the program did not know the option
                self.note(f"options meant for hookcli go before the program: {self._run.meant}")
            code = 1 if error is None and by_part else code
            keep = trained or self._run.named
            end = self.finish(code, error, counts, keep=keep)
            if not self.kept:
                self._files.release()
            if prints:
                self._print(end)
        elif os.getpid() == self._run.process and self._files.untaken:
            self._files.release()
            say_aside(f"{self._run.name}: {parts}") if prints and not self._run.quiet else None
        _keep_signal()

    def _parts_of_children(self) -> str:
        files = self._files.of_launch()
        number = sum(path.name.startswith("child") for path in files.parts()) if files else 0
        children = f"{number:,} child process{'es' * (number > 1)} trained"
        return f"{children}; recorded in {relative(files.folder)}{os.sep}" if files and number else ""

    def _print(self, end: End) -> None:
        if sys.__stderr__ is None:
            return
        record = self.path.parent if self._world.size > 1 else self.path  # as `hookcli show` takes it
        try:
            on_terminal = is_terminal(sys.__stderr__)
            size = terminal_size(sys.__stderr__) if on_terminal else None
            width, height = (size.columns, size.lines) if size else (asked("COLUMNS") or None, None)
            view = View(width=width, height=height, color=takes_color(sys.__stderr__), bars=on_terminal)
            header = replace(self._header, rank=self._world.rank, ranks=self._world.size)
            unkept = Record.unkept(header, self._non_finite, self._courses)
            whole = open_record(record) if self.kept else unkept
            own = whole.parts[self._world.rank] if isinstance(whole, RankedRecord) else whole
            own.end = end  # for which a full disk has no room
            whole.end = whole.end or end  # other ranks may still run
            path = relative(record) if self.kept else None
            checked = self._run.plan.get("check", False)
            text = summary(whole, own, path, view, checked=checked, faults_only=self._run.quiet)
            if sys.__stdout__ is not None:
                with suppress(OSError, ValueError):  # what it can't take fails again as Python ends
                    sys.__stdout__.flush()  # so that in one pipe the summary comes after what the program has printed
            aside(encodable(text, sys.__stderr__), sys.__stderr__)
            for remark, trace in registry.remarks().items():
                if self._debug and trace:
                    say_aside(trace.rstrip().replace("\n", "\n  "))
                say_aside(remark)
        except Exception as error:  # the exit code must stay the program's
            see = f"`hookcli show {shell_path(record)}`"
            say_aside(f"warning: no summary ({in_brief(error)}); see {see}")


def say_aside(text: str) -> None:
    """Print to the stderr that the process began with: the program may have replaced `sys.stderr`."""
    if sys.__stderr__ is not None:
        say(text, sys.__stderr__)


def _uncaught() -> tuple[int | None, str | None]:
    """Exit code and text of the uncaught exception that ended the program, which Python has shown by now."""
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]
    if error is None or isinstance(error, SystemExit) or hasattr(sys, "ps1"):  # a session goes on after exceptions
        return None, None
    lines = format_exception_only(error)
    text = shortened(" ".join((lines[-1] if isinstance(error, SyntaxError) else lines[0]).split()))
    return 130 if type(error) is KeyboardInterrupt else 1, text  # a subclass ends Python with 1


def _keep_signal() -> None:
    """Make Python die of SIGINT after all, if an interrupt ended the program. Call it last of all.

    CPython remembers an interrupt only until the next `exec` of source text, which every namedtuple uses
    (`run_eval_code_obj` in pythonrun.c).
    """
    if type(getattr(sys, "last_value", None)) is KeyboardInterrupt:
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")
