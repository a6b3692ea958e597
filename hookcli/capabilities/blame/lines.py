"""The line of a record that says what made a gradient large, or not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hookcli.record.file.record_lines import PartLine, RecordedStep
from hookcli.table.stats import norm

APART = 10
"""A sum of squares (of a row, micro-batch or rank) or a step's norm stands out above this many times the median."""


@dataclass(frozen=True, slots=True)
class Blame(PartLine):
    """A recorded step whose gradient was far larger than usual, or the first that was not finite, as one rank saw it.

    `norm` is the gradient's, before clipping; None if it was not finite. `usual` is the median of the recorded steps
    before. `passes` has for each backward pass through the model, of this rank's own batch, the sum of squares of
    the gradients that rows of the batch made; infinite if one was not finite. `rows` are those of the `size` rows in
    the pass with the largest sum that stand out, the largest first, `share` is their share of it, and `fqn` the module
    where most of it is; `size` is 0 if no module returned a row for each of the batch. The module `mixed` mixes rows.
    """

    kind: ClassVar[str] = "blame"

    norm: float | None
    usual: float | None
    passes: Sequence[float]
    rows: Sequence[int] = ()
    size: int = 0
    share: float = 0.0
    fqn: str = ""
    mixed: str = ""

    @property
    def place(self) -> str:
        """The module where most of the gradient is."""
        return self.fqn


def gradient_norm(step: RecordedStep) -> float:
    """The norm of a step's gradient, before clipping; 0 without one."""
    grads = [row["l2"] for row in step.parameter_grads() if row["numel"]]
    groups = [row.get("unclipped_grad") for row in step.rows("optimizer")]
    return norm(grads if None in groups or not groups else groups)


LINES = (Blame,)
