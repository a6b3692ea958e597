"""Undoes a GradScaler's scale in the gradients that are seen before an optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from hookcli.hooks.torch_private.distributed import loss_scale
from hookcli.table import Row

_SKIPPED = "the GradScaler skipped a step: gradients overflowed"


class GradScaling:
    """The scale of each backward pass in a step: it may change between two passes, and a pass may have none."""

    def __init__(self) -> None:
        self._of_rows: list[Tensor | None] = []
        self._overflows: list[Tensor] = []
        self._skipped = False
        self.last: Tensor | None = None
        """The scale of the last pass; None if it had none."""

    @property
    def used(self) -> bool:
        """True if a loss was scaled; the scaler then handles overflows."""
        return self._skipped or any(scale is not None for scale in self._of_rows)

    def backward_over(self, rows: int, scaler: Any) -> None:
        """Note the scale of a pass that is over, with `rows` gradients so far; `scaler` is None for a plain loss."""
        self.last = loss_scale(scaler).clone() if scaler is not None else None  # get_scale() would wait for a GPU
        self._of_rows += [self.last] * (rows - len(self._of_rows))

    def step_begins(self, optimizer: Optimizer) -> None:
        """Note whether a step that begins has an overflow: a fused optimizer then skips it by itself."""
        if (found := getattr(optimizer, "found_inf", None)) is not None:
            self._overflows.append(found.detach().clone())

    def step_skipped(self) -> None:
        self._skipped = True

    def notes(self) -> list[str]:
        """Notes on skipped steps and scales. Waits for an accelerator."""
        skipped = [_SKIPPED] if self._skipped or any(float(found) for found in self._overflows) else []
        scales = dict.fromkeys(f"{float(scale):g}" for scale in self._of_rows if scale is not None)
        divided = f"gradients of outputs are divided by the GradScaler's scale, {', '.join(scales)}"
        return skipped + ([divided] if scales else [])

    def unscale(self, rows: Sequence[Row]) -> list[Row]:
        scales = [*self._of_rows, *[None] * (len(rows) - len(self._of_rows))]
        return [
            row if scale is None or row.stats is None else replace(row, stats=row.stats.scaled(1 / float(scale)))
            for row, scale in zip(rows, scales, strict=True)
        ]
