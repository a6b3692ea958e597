"""Times the calls of a prepared run in separate passes, under hooks that only note the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn

from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.preserve import preserved
from hookcli.engine.setting import Feedback
from hookcli.engine.step import Step
from hookcli.errors import HookcliError, UsageError, UserCode, kept_if_interrupted, message_of
from hookcli.hooks.clock import timer_for
from hookcli.hooks.edits.base import Edit
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.call_times import CallTimer, OwnTimes, over_passes
from hookcli.table import Report, Skipped
from hookcli.table.times import CallKey, Times, with_times
from hookcli.tensors import tree

PASSES = 5
_LONGEST = 10.0  # seconds; a model that takes longer is timed in fewer passes
Pass = dict[CallKey, OwnTimes]


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A model to time, and how it runs: on `inputs`, as `step` says, with backward if that has one.

    `unhooked`: the modules that take no hooks, each with a reason. Each pass runs `within` such a context. A model that
    `warms_up` runs once before it is timed, since hooks make torch.compile compile it again.
    """

    model: nn.Module
    inputs: Any
    step: Step
    fastpath: bool = True
    edits: Sequence[Edit] = ()
    ops: str | None = None
    unhooked: Mapping[str, str] = field(default_factory=dict)
    within: Callable[[], AbstractContextManager[object]] = nullcontext
    warms_up: bool = False

    @property
    def device(self) -> torch.device:
        tensors = [*self.model.parameters(), *(x for _, x in tree.leaves(self.inputs))]
        return next((x.device for x in tensors), torch.device("cpu"))

    def once(self) -> Pass:
        """Run one pass and restore all. Raises ModelError where the model fails, UsageError where it can't be timed."""
        session = HookSession(
            self.model,
            fastpath=self.fastpath,
            edits=self.edits,
            ops=self.ops,
            discard_saved=not (self.step.backward or self.step.gradients),
        )
        session.unhooked |= self.unhooked
        step = replace(self.step, passes=1, optimizer=None, state_dict=False, graph=False, input_grad=False)
        with self.within(), step.mode(), preserved(self.model, self.inputs, parameters=False), session:
            if self.device.type == "meta":
                raise UsageError("times: nothing is computed on the meta device")
            timer = CallTimer(session, timer_for(self.device, session.clock), backward=step.backward)
            with UserCode(partial(failure.crashed, self.model, {})):
                step.run(session, *arguments(self.inputs), {})
            return timer.own()


def time_passes(*models: TimedModel, feedback: Feedback = Feedback()) -> tuple[list[Times], str]:
    """Times of each model, medians of a few passes that they make in turns, and a remark on how they were taken."""
    for model in models:
        if model.warms_up:
            model.once()
    began = perf_counter()
    passes: list[list[Pass]] = []
    while not passes or (len(passes) < PASSES and perf_counter() - began < _LONGEST):
        feedback.stage(f"timing: pass {len(passes) + 1} of {PASSES}")
        passes.append([model.once() for model in models])
    count = f"median of {len(passes)} passes" if passes[1:] else "one pass"
    device = models[0].device
    events = "" if device.type == "cpu" else f", by events on {device}"
    return [over_passes(each) for each in zip(*passes, strict=True)], f"times: {count} after the measured one{events}"


def with_measured_times(reports: Sequence[Report], model: TimedModel, feedback: Feedback) -> list[Report]:
    """The reports of a run with the times of its calls; where the model can't be timed, `skipped` has the reason.

    A model in training mode is also timed in backward if it can be differentiated. A KeyboardInterrupt carries the
    reports without times, as its `reports`.
    """
    ways = [model]
    if model.model.training and not model.step.backward:
        ways.insert(0, replace(model, step=replace(model.step, backward=True)))
    for way in ways:
        try:
            with kept_if_interrupted(lambda: reports):
                (times,), note = time_passes(way, feedback=feedback)
            return [with_times(report, times, note) for report in reports]
        except HookcliError as error:
            untimed = why_untimed(error)
    return [replace(report, skipped=[*report.skipped, untimed]) for report in reports]


def why_untimed(error: HookcliError) -> Skipped:
    """The entry of `skipped` for a model that can't be timed."""
    first, _, _ = message_of(error).partition("\n")
    return Skipped("", f"times: {first}")
