"""The loss of every step, recorded or not."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.optim.optimizer import Optimizer

from hookcli.record.file.record_lines import UNSEARCHED, NonFinite, StepLosses
from hookcli.record.observe.steps.losses import Held, HeldGradients

_AT_ONCE = 100
"""Steps whose losses are read together: reading one on an accelerator makes the program wait for all of its work."""
_Terms = list[Tensor | float] | None  # of one backward pass; None if it begins from no single numbers


@dataclass(slots=True)
class _Pass:
    """A backward pass. `reached`: optimizers (ids) that hold the gradients that it left; None if no such were seen."""

    terms: _Terms
    reached: set[int] | None = None

    def counts(self, optimizer: int) -> bool:
        return self.reached is None or optimizer in self.reached


class _Step(NamedTuple):
    """A step, and the backward passes before it; `whole`: their loss takes the place of what is known of the step."""

    model: str
    number: int
    passes: list[_Terms]
    whole: bool = False

    @property
    def loss(self) -> float | None:
        """The sum over the passes from numbers, for which an accelerator may have to be waited for."""
        known = [sum(map(float, terms)) for terms in self.passes if terms is not None]
        return sum(known) if known else None


class EveryLoss:
    """Takes the loss of each backward pass as it begins, and gives the sum to the next optimizer's step.

    A pass counts for the optimizers that it gave gradients to, unless the program clears these before the step. `write`
    receives the losses of consecutive steps, `found` the first one that is NaN or infinite.
    """

    def __init__(self, write: Callable[[StepLosses], None], found: Callable[[NonFinite], None]) -> None:
        self._write = write
        self._found = found
        self._is_found = False
        self._passes: list[_Pass] = []  # since the last step
        self._running: dict[int, list[tuple[_Pass, Held]]] = {}  # by thread; one pass may run another
        self._left: Held = {}  # by the last pass
        self._had: set[tuple[str, int]] = set()  # models, and the passes of the last step that have counted for them
        self._last: list[_Pass] = []
        self._unread: list[_Step] = []
        self._waits = False
        self._read: dict[str, dict[int, float | None]] = {}

    def begin_pass(self, terms: Iterable[Tensor] | None, optimizers: Iterable[Optimizer]) -> None:
        """A backward pass begins, from the sum of `terms`."""
        copies: _Terms = None if terms is None else [x.item() if x.is_cpu else x.detach().clone() for x in terms]
        self._waits = self._waits or any(isinstance(copy, Tensor) for copy in copies or ())
        held = HeldGradients(optimizers)
        if self._passes:
            self._drop(held.cleared_since(self._left))
        self._passes.append(one := _Pass(copies))
        self._running.setdefault(threading.get_ident(), []).append((one, held.held))

    def end_pass(self, optimizers: Iterable[Optimizer]) -> None:
        """The last pass that began in this thread, if any did, is over or has failed."""
        if not (running := self._running.get(threading.get_ident())):
            return
        one, before = running.pop()
        left = HeldGradients(optimizers)
        self._left, one.reached = left.held, left.changed_since(before) or None
        if self._passes[1:] and self._passes[-1] is one:
            self._join(self._passes[-2], one)

    def _join(self, before: _Pass, last: _Pass) -> None:
        """Make one pass of two that count for the same, if their numbers are known: a loop may have any number."""
        terms = [*(before.terms or ()), *(last.terms or ())]
        if before.reached == last.reached and not any(isinstance(term, Tensor) for term in terms):
            self._passes[-2:] = [_Pass([sum(map(float, terms))] if terms else None, last.reached)]

    def _drop(self, cleared: set[int]) -> None:
        for one in self._passes if cleared else ():
            one.reached = one.reached and one.reached - cleared
        self._passes = [one for one in self._passes if one.reached != set()]

    def stepped(self, numbers: Mapping[str, int], optimizer: int = 0) -> None:
        """An optimizer has made the step of this number, by model. Others that step after it share its passes."""
        self.skipped()
        for model, number in numbers.items():
            left = [
                (n, one) for n, one in enumerate(self._last) if one.counts(optimizer) and (model, n) not in self._had
            ]
            self._had.update((model, n) for n, _ in left)
            self._unread.append(_Step(model, number, [one.terms for _, one in left]))
        if not self._waits or len(self._unread) >= _AT_ONCE:
            self._read_all()
        if any(len(losses) > _AT_ONCE for losses in self._read.values()):
            self.flush()

    def skipped(self) -> None:
        """An optimizer's step was left out, perhaps not those of others: no later step takes these passes."""
        if self._passes:
            self._last, self._passes = self._passes, []
            self._had.clear()

    def correct(self, model: str, number: int, loss: float) -> None:
        """A recorded step knows which passes count: the gradients of some are cleared before the optimizer's step."""
        self._unread.append(_Step(model, number, [[loss]], whole=True))

    def flush(self, *, all_of_them: bool = False) -> None:
        """Write the losses, but for those of each model's last step, to which further optimizers may add."""
        self._read_all()
        for model, losses in self._read.items():
            last = {} if all_of_them else {number: losses[number] for number in sorted(losses)[-1:]}
            self._read[model] = last
            for first, values in _consecutive({n: losses[n] for n in sorted(losses) if n not in last}):
                self._write(StepLosses(model, first, values))

    def _read_all(self) -> None:
        unread, self._unread, self._waits = self._unread, [], False
        for step in unread:
            losses, loss = self._read.setdefault(step.model, {}), step.loss
            before = None if step.whole else losses.get(step.number)
            losses[step.number] = before if loss is None else loss + (before or 0.0)
            if loss is not None and not math.isfinite(loss) and not self._is_found:
                self._is_found = True
                nan, inf = int(math.isnan(loss)), int(math.isinf(loss))
                self._found(NonFinite(step.model, "train", step.number, "", "loss", nan, inf, [], UNSEARCHED))


def _consecutive(losses: Mapping[int, float | None]) -> Iterator[tuple[int, list[float | None]]]:
    """The losses of steps that follow each other, with the number of the first."""
    first, values = 0, list[float | None]()
    for number, loss in losses.items():
        if number != first + len(values):
            if values:
                yield first, values
            first, values = number, []
        values.append(loss)
    if values:
        yield first, values
