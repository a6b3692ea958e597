"""Runs of a model under changes to its parts, on one batch with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from hookcli.engine import failure
from hookcli.engine.inputs import arguments
from hookcli.engine.prepare import PreparedRun
from hookcli.engine.preserve import SavedValues, preserved
from hookcli.engine.probing import Edits, parse_edits
from hookcli.engine.setting import Feedback
from hookcli.errors import UserCode
from hookcli.hooks.edits.base import Edit, check_applied
from hookcli.hooks.parts import Select, uncompiled
from hookcli.hooks.session import HookSession
from hookcli.probes.shared.unregistered import UnregisteredParts
from hookcli.table.formatting import counted, duration

_BAR = 16  # characters
ChangedWeight = tuple[nn.Parameter, Any, Callable[[Tensor], Tensor]]
"""A weight, the index of the part of it that changes, and the change."""


@contextmanager
def changed(weights: Sequence[ChangedWeight]) -> Iterator[None]:
    """Change these weights in the block; after it they are as before, bit for bit."""
    kept = SavedValues(parameter for parameter, _, _ in weights)
    try:
        for parameter, index, change in weights:
            if 0 in parameter.data.stride():  # expanded: its repeats can't be written to
                parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
            parameter.data[index] = change(parameter.data[index])
        yield
    finally:
        kept.put_back()


def no_module(fqn: str, module: nn.Module) -> bool:
    """Select no module: a run whose modules nobody watches."""
    return False


@dataclass(frozen=True)
class ChangedRuns:
    """Runs of a prepared model; the caller's own `edits` stay in each of them."""

    run: PreparedRun
    edits: Edits = ()
    fastpath: bool = True

    def once(
        self,
        ran: Callable[[object], object],
        edits: Sequence[Edit] = (),
        weights: Sequence[ChangedWeight] = (),
        begin: Callable[[HookSession], object] | None = None,
        select: Select | None = no_module,
    ) -> None:
        """Run the model under these changes, call `ran` with what it returns, and put all back.

        `begin` is called with the session before the model runs, to watch the modules that `select` allows. Raises
        ModelError where the model fails, UsageError for an edit that was never applied.
        """
        model, run = self.run.model, self.run
        edits = [*parse_edits(self.edits, model, False), *edits]
        edits = [replace(edit, number=n, applied=0) for n, edit in enumerate(edits)]
        discards = not run.step.gradients
        session = HookSession(model, select=select, fastpath=self.fastpath, edits=edits, discard_saved=discards)
        step = replace(run.step, backward=False, graph=False, passes=1, ran=ran)
        kept = preserved(model, run.inputs, parameters=False)
        parts = preserved(UnregisteredParts(model), (), parameters=False)
        with step.mode(), uncompiled(model), kept, parts, changed(weights), session:
            if begin:
                begin(session)
            with UserCode(partial(failure.crashed, model, {})):
                step.run(session, *arguments(run.inputs), {})
        check_applied(edits, ())


class Named(Protocol):
    """A change that has a name."""

    @property
    def name(self) -> str:
        """The place that changes, in words."""


Change = TypeVar("Change", bound=Named)


def one_by_one(changes: Sequence[Change], forward: float, what: str, feedback: Feedback) -> Iterator[Change]:
    """Each change in turn; people see how many there are, how far it is, and how long the rest will take.

    `forward`: the seconds that one run takes, for the estimate. `what`: "sweep of resnet50".
    """
    start = perf_counter()
    about = f"{counted(len(changes), 'run')}, about {duration(len(changes) * forward)} (a forward: {duration(forward)})"
    if changes:
        feedback.remark(f"{what}: {about}")
    for done, change in enumerate(changes):
        seconds = (perf_counter() - start + forward) / (done + 1) * (len(changes) - done)
        bar = ("█" * (_BAR * done // len(changes))).ljust(_BAR, "░")
        feedback.follow(partial(str, f"{bar} {done} of {len(changes)}, {duration(seconds)} left · {change.name}"))
        yield change
