"""Records the process that it runs in, which is one of a program that `hookcli run` has started."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hookcli.record.launching.launched import Launched
from hookcli.record.process_sink import ProcessSink, say_aside

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
                say_aside(f"warning: hookcli failed in a child process ({type(error).__name__}: {error})")

    def end(self) -> None:
        """Stop observing, and end the record. Does nothing the second time."""
        observer, sink = self._observer, self._sink
        self._observer = self._sink = None
        if observer is None or sink is None:
            return
        observer.stop()
        for note in observer.notes():
            sink.note(note)
        if (sink.lost and not self._plan.first_bad) or (sink.found_in_module and not self._plan.ops):
            sink.note(f"Next: {self._run.search()}")
        models = list(observer.models.counts.values())
        if models and not any(model.recorded_steps or model.recorded_forwards or model.notes for model in models):
            steps = [model.steps or model.forwards + model.no_grad_forwards for model in models]
            sink.note(self._plan.why_none(max(steps)))
        sink.end(models, dict(observer.models.others), steps=observer.program_steps, own=observer.clock.own)
