"""Outputs that no longer depend on the input: the same for every row of a batch whose rows differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hookcli.tensors import tree

_ROWS, _VALUES, _OUTPUTS = 32, 4096, 8  # of a batch that are compared
_ROUNDING = 1e-6  # of the largest output


class Alike:
    """The first rows of what a model received and returned in a step; the figures stay on the device."""

    def __init__(self) -> None:
        self._differ: list[Tensor] = []
        self._rows = 0
        self._spreads: list[tuple[Tensor, Tensor, Tensor]] = []
        self._largest: list[Tensor] = []

    def receive(self, x: Tensor) -> None:
        if x.dim() and len(x) > 1 and x.numel():
            self._rows = self._rows or len(x)
            rows = sample(x)
            self._differ.append((rows != rows[:1]).any())
            if x.is_floating_point():
                self._largest.append(rows.float().square().mean().sqrt())

    def returned(self, outputs: Sequence[Tensor]) -> None:
        """Take the outputs that have a row for each of the input, and a gradient."""
        for x in outputs if len(self._spreads) < _OUTPUTS else ():
            fits = tree.is_plain(x) and x.is_floating_point() and x.dim() > 1 and len(x) == self._rows
            if fits and x.requires_grad and x.numel():
                rows = sample(x).float()
                self._spreads.append(((rows - rows[:1]).abs().amax(), rows.abs().amax(), rows[0, 0]))

    def size(self) -> float:
        """The largest root mean square of an input; 0 if none is known. Waits for an accelerator."""
        return max(filter(math.isfinite, map(float, self._largest)), default=0.0)

    def judge(self) -> bool | None:
        """True if all rows of each output are the same though the input's differ; None if that is not known.

        A sigmoid that is certain of each row returns 1, or next to 0, which says nothing. Waits for an accelerator.
        """
        if not self._spreads or not any(map(bool, self._differ)):
            return None
        figures = [tuple(map(float, one)) for one in self._spreads]
        if any(min(abs(value), abs(1 - abs(value))) < _ROUNDING for _, _, value in figures):
            return None
        return all(spread <= _ROUNDING * largest for spread, largest, _ in figures)


def sample(x: Tensor) -> Tensor:
    """Some values of the first rows, from all over each row: the first ones may be the same, as a first token is."""
    with torch.no_grad():
        rows = x.detach()[:_ROWS].flatten(1) if x.dim() > 1 else x.detach()[:_ROWS, None]
        return rows[:, :: max(rows.shape[1] // _VALUES, 1)]
