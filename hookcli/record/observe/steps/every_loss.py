"""The loss of every step, recorded or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from hookcli.record.file.record_lines import UNSEARCHED, NonFinite, StepLosses

_AT_ONCE = 100
"""Steps whose losses are read together: reading one on an accelerator makes the program wait for all of its work."""
_Terms = list[Tensor | float] | None  # of one backward pass; None if it begins from no single numbers


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

    `write` receives the losses of consecutive steps, `found` the first one that is NaN or infinite.
    """

    def __init__(self, write: Callable[[StepLosses], None], found: Callable[[NonFinite], None]) -> None:
        self._write = write
        self._found = found
        self._is_found = False
        self._passes: list[_Terms] = []  # since the last step
        self._in_closure = False
        self._had: set[str] = set()  # models that have had the passes of the last step
        self._last: list[_Terms] = []
        self._unread: list[_Step] = []
        self._waits = False
        self._read: dict[str, dict[int, float | None]] = {}

    def begin_pass(self, terms: Iterable[Tensor] | None) -> None:
        """A backward pass begins, from the sum of `terms`."""
        copies: _Terms = None if terms is None else [x.item() if x.is_cpu else x.detach().clone() for x in terms]
        self._waits = self._waits or any(isinstance(copy, Tensor) for copy in copies or ())
        self._passes = [*([] if self._in_closure else self._passes), copies]

    def begin_step(self, *, closure: bool) -> None:
        """An optimizer's step begins. With a closure its loss is that of the last evaluation."""
        self._in_closure = closure

    def stepped(self, numbers: Mapping[str, int]) -> None:
        """An optimizer has made the step of this number, by model. Others that step after it share its passes."""
        self._in_closure = False
        if self._passes:
            self._last, self._passes = self._passes, []
            self._had.clear()
        for model in numbers.keys() - self._had:
            self._unread.append(_Step(model, numbers[model], self._last))
        self._had |= numbers.keys()
        if not self._waits or len(self._unread) >= _AT_ONCE:
            self._read_all()

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
            losses[step.number] = loss if loss is None or before is None else before + loss
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
