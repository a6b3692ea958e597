"""The part of speed in a recorded run: how long the program waits for data, and how long the parts of a step take."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from statistics import median

import torch

from hookcli.capabilities.speed.lines import Pace
from hookcli.capabilities.speed.work import Done, StepOfWork
from hookcli.hooks.torch_private.exchange import batches_yielded, loader_workers
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.observe.parts import BegunStep, RecordedRun, RecorderPart, StepPart

_KEPT = 64  # recorded steps
_FIRST = 8
_PARTS = ("data", "forward", "backward", "optimizer", "rest")
_KNOWN = ("cpu", "cuda")  # of other devices it is not asked whether they have work left


class Recorder(RecorderPart):
    """Adds up the main thread's waiting in all steps, and keeps the times of the last recorded ones."""

    def __init__(self, throughput: bool, peak_flops: float | None) -> None:
        self._counts_work = throughput or peak_flops is not None
        self._peak_flops = peak_flops
        self._done: dict[str, Done] = {}
        self._began: float | None = None
        self._waited = self._first = 0.0
        self._batches = self._epochs = self._starved = self._workers = 0
        self._recorded = self._yielded = 0
        self._times: dict[str, deque[Mapping[str, float]]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._last: tuple[str, int] | None = None  # the last recorded step's model and number

    def begin_run(self, run: RecordedRun) -> None:
        self._run = run

    def begin_step(self, step: BegunStep) -> StepPart | None:
        """A step begins, whose work is counted if that is asked for."""
        if not (self._counts_work and step.training and step.gradients):
            return None
        return StepOfWork(step, self._done.setdefault(step.model, Done(self._run.clock, self._peak_flops)))

    def batch_taken(self, iterator: object) -> None:
        """Note how long the program has waited for this batch."""
        if threading.current_thread() is not threading.main_thread():
            return
        now = self._run.clock.mark()
        waited, self._waited = now.waited - self._waited, now.waited
        if self._began is None:
            self._began = now.program - waited
        yielded, before = batches_yielded(iterator), self._yielded
        self._yielded = yielded
        if yielded != before:  # else there was none left
            self._batches += 1
            # The device is idle if it has done all that the program gave it.
            self._starved += not torch.cuda.is_initialized() or (
                not torch.cuda.is_current_stream_capturing() and torch.cuda.current_stream().query()
            )
        if yielded == 1 != before:
            self._epochs += 1
            self._first += waited
            self._workers = loader_workers(iterator)

    def step_recorded(self, step: RecordedStep) -> None:
        """Keep the times of a training step. After 8, 16, 32 ... of them a line is written: the run may be killed."""
        judged = all(report.meta.get("device", "cpu") in _KNOWN for report in step.reports)
        if step.phase != "train" or not (step.complete and judged):
            return
        totals = step.totals("time")
        times = {part: totals[f"{part}_seconds"] for part in _PARTS if f"{part}_seconds" in totals}
        if times:
            self._times[step.model].append(times)
        self._recorded += 1
        self._last = step.model, step.step
        if self._recorded >= _FIRST and self._recorded.bit_count() == 1:
            self._write()

    def run_ends(self) -> None:
        self._write()

    def _write(self) -> None:
        if self._last is None:
            return
        seconds = self._run.clock.now() - self._began if self._began is not None else 0.0
        model, step = self._last
        times = self._times[model]
        parts = {part: median(one[part] for one in times) for part in times[0]} if times else {}
        self._run.write(
            Pace(
                model,
                step,
                batches=self._batches,
                seconds=seconds,
                waited=self._waited,
                first=self._first,
                epochs=self._epochs,
                starved=self._starved,
                workers=self._workers,
                steps=len(times),
                parts=parts,
            )
        )
