"""The ends of epochs, as the program's DataLoaders tell them: the last step of a run is one of these."""

from __future__ import annotations

import torch

from hookcli.hooks.torch_private.exchange import batches_in_all, batches_yielded

_EVERY = 25  # epochs, whose ends are all recorded
_AHEAD = 2  # steps before an epoch's end: it may end a step earlier than the numbers of batches say


class Epochs:
    """Counts the batches that the program takes with gradients on, as it does in training."""

    def __init__(self) -> None:
        self._batches = 0
        self._epochs = 0
        self._length = 0  # of this epoch, in batches; 0 if unknown
        self._left = 0

    def taken(self, iterator: object) -> None:
        """Note that a DataLoader's iterator has yielded a batch, or has no more."""
        if not torch.is_grad_enabled():
            return
        yielded = batches_yielded(iterator)
        if yielded == 1:
            self._epochs += 1
            self._length = batches_in_all(iterator)
        self._left = self._length - yielded
        self._batches += 1

    def ends(self, step: int) -> bool:
        """True if this step, which begins now, may be the last of an epoch.

        Of more than 25 epochs only every second, fifth, tenth ... counts, which end at round numbers. A step may take
        several batches; a program that fetches ahead has the last one a step early, and then two steps count.
        """
        return self._length > 0 and self._left < self._each(step) and self._counts(self._epochs)

    def may_end(self, step: int, now: int) -> bool:
        """True if this step may be the last of an epoch, seen from the end of the step before number `now`."""
        if not self._length:
            return False
        each = self._each(now)
        left = self._left - (step + 1 - now) * each
        for at in (left, left + each):  # the program may have fetched the batches of a step ahead
            epoch = self._epochs - at // self._length
            if self._counts(epoch) and at % self._length < _AHEAD * each:
                return True
        return False

    def _each(self, step: int) -> int:
        """The number of batches that a step takes."""
        return max(self._batches // step if step else 1, 1)

    def _counts(self, epoch: int) -> bool:
        """True if the last step of this epoch is recorded."""
        return epoch % _round(epoch / _EVERY) == 0


def _round(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20 ... that is at least this."""
    power = 1
    while True:
        for number in (power, 2 * power, 5 * power):
            if number >= least:
                return number
        power *= 10
