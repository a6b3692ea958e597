"""By how much a GradScaler had scaled the losses, and so the gradients that are seen before an optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from hookcli.report import Row

_LEFT_OUT = "the GradScaler left out a step: gradients overflowed"


class Scales:
    """The scale of each backward pass in a window: it may change between two, and some may have none."""

    def __init__(self) -> None:
        self._of_rows: list[Tensor | None] = []
        self._overflows: list[Tensor] = []
        self._left_out = False

    @property
    def any(self) -> bool:
        """Whether a loss was scaled: what overflows then is the scaler's business."""
        return self._left_out or any(scale is not None for scale in self._of_rows)

    def passed(self, rows: int, scaler: Any) -> None:
        """A backward pass is over, of a loss that this scaler made or none, after which there are so many rows."""
        scale = scaler._get_scale_async().clone() if scaler is not None else None  # get_scale() would wait for a GPU
        self._of_rows += [scale] * (rows - len(self._of_rows))

    def stepping(self, optimizer: Optimizer) -> None:
        """A step begins. A fused optimizer leaves it out by itself, where the GradScaler hands it an overflow."""
        if (found := getattr(optimizer, "found_inf", None)) is not None:
            self._overflows.append(found.detach().clone())

    def left_out(self) -> None:
        """The scaler has left out a step."""
        self._left_out = True

    def notes(self) -> list[str]:
        """What to say of them. On an accelerator this waits."""
        left_out = [_LEFT_OUT] if self._left_out or any(float(found) for found in self._overflows) else []
        scales = dict.fromkeys(f"{float(scale):g}" for scale in self._of_rows if scale is not None)
        told = f"gradients of outputs are divided by the GradScaler's scale, {', '.join(scales)}"
        return left_out + ([told] if scales else [])

    def undone(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, in the order in which they came, as they would be without."""
        scales = [*self._of_rows, *[None] * (len(rows) - len(self._of_rows))]
        return [
            row if scale is None or row.stats is None else replace(row, stats=row.stats.scaled(1 / float(scale)))
            for row, scale in zip(rows, scales, strict=True)
        ]
