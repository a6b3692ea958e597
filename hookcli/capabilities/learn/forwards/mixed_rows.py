"""Whether the rows of a batch mix in a model whose loss stays near that of guessing: a run of the model tells."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from hookcli.checks.base import ERROR
from hookcli.checks.evaluation import BatchDependence
from hookcli.checks.measurements import Comparison, Measurements
from hookcli.engine.preserve import copied, preserved_with_attributes
from hookcli.errors import ModelError
from hookcli.hooks.events import HookEvent
from hookcli.hooks.torch_private.modules import has_forward_hooks
from hookcli.record.file.record_lines import RecordedStep
from hookcli.record.observe.parts import BegunStep
from hookcli.system.torchrun import joined_world
from hookcli.system.unheard import unheard

if TYPE_CHECKING:
    from hookcli.engine.eval_mode import Arguments

_STEP = 24  # before which a loss near guessing's says nothing
_LAST, _MOST = 8, 6  # recorded steps, and how many of them must be near it
_NEAR = 0.95  # of the loss of guessing
_SIZE = 2**28  # elements of parameters that are copied


@dataclass
class MixedRows:
    """Runs a model in eval mode on the batch of a recorded step, and with other rows beside its first one.

    Asked is a model whose last recorded losses are near the level of guessing, and once, as the program is about to
    call it in another recorded step. The model, its inputs and all random states are then as before. Not asked are
    models with hooks, which may belong to the program's own observation, very large ones, and those of several
    processes.
    """

    words: str = ""
    """How the rows mix; "" if they do not, or if that is not known."""
    _near: deque[bool] = field(default_factory=lambda: deque(maxlen=_LAST))
    _batch: Arguments | None = None
    _asks: bool = False
    _asked: bool = False

    def note(self, step: RecordedStep, level: Mapping[str, Any]) -> None:
        """Note a recorded step, and the fields of its line from which the level of guessing follows."""
        guessed = loss_of_guessing(level)
        self._near.append(step.loss is not None and guessed is not None and step.loss >= _NEAR * guessed)
        self._asks = step.step >= _STEP and sum(self._near) >= _MOST and not self._asked

    def take(self, event: HookEvent) -> None:
        """Keep a copy of what the model receives, if it is asked next."""
        if self._asks:
            self._batch = copied((event.args, dict(event.kwargs)))

    def ask(self, begun: BegunStep) -> None:
        """Ask the model, if it is its turn."""
        batch, self._batch = self._batch, None
        if batch is None or not self._asks:
            return
        self._asked, self._asks = True, False
        if may_run(begun.module) and (mixed := mixed_in(begun.module, batch)):
            place = f", from {begun.name(mixed.fqn)} on" * bool(mixed.fqn)
            why = f": {mixed.reason}" * bool(mixed.reason)
            self.words = f"the output for a row also depends on other rows of its batch{place}{why}"


def loss_of_guessing(level: Mapping[str, Any]) -> float | None:
    """About the loss that guessing has, from the fields of a line; None if that is not known."""
    if level.get("classes"):
        return float(level["scaled"]) * math.log(level["classes"])
    times = level.get("times") or 1.0
    if level.get("spread"):
        return float(times * level["spread"])
    share = level.get("ones") or 0.0
    return -float(times * (share * math.log(share) + (1 - share) * math.log(1 - share))) if 0 < share < 1 else None


def may_run(module: nn.Module) -> bool:
    """True if a further run of this model is no other's business, and costs little."""
    size = sum(p.numel() for p in module.parameters())
    return joined_world().size == 1 and size <= _SIZE and not any(map(has_forward_hooks, module.modules()))


def mixed_in(module: nn.Module, batch: Arguments) -> Comparison | None:
    """Two runs that differ in the output for the same row, if HK020 is sure that they must not; else None."""
    from hookcli.engine.eval_runs import EvalOfBatch  # which few runs need, and which takes long to import

    try:
        with unheard(), preserved_with_attributes(module, batch):
            measured = EvalOfBatch(module, batch, {"companions"}, is_fault, None, None).measured()["companions"]
    except ModelError:  # as where it has no eval mode
        return None
    return measured if isinstance(measured, Comparison) and is_fault("", measured) else None


def is_fault(_: str, measured: object) -> bool:
    """True if HK020 finds an error in this comparison."""
    if not isinstance(measured, Comparison):
        return False
    compared: Any = Measurements(companions=measured)
    return any(finding.severity == ERROR for finding in BatchDependence().judge(compared))
