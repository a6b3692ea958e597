"""The line of a record that tells the state of a training apart from any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from hookcli.record.file.record_lines import PartLine


@dataclass(frozen=True, slots=True)
class Fingerprint(PartLine):
    """Digests of what a recorded step began with, in 16 hexadecimal digits each; "" where one is not known.

    `weights`: the bits of parameters and buffers. `kept`: of the tensors that optimizers keep. `settings`: the
    optimizers' numbers, such as learning rates. `random`, `python` and `numpy`: the states of their random number
    generators, PyTorch's the first. `received`: the bits of the tensors that the model received.

    `each` has `DIGITS` for each tensor of the weights, and the first line of a model the `names` of these.
    `after`: it has the weights and the state after the last recorded step, and nothing else.
    """

    kind: ClassVar[str] = "fingerprint"

    weights: str = ""
    kept: str = ""
    settings: str = ""
    random: str = ""
    python: str = ""
    numpy: str = ""
    received: str = ""
    each: str = ""
    names: Sequence[str] = field(default_factory=tuple)
    after: bool = False
    rank: int = 0

    def of_rank(self, rank: int) -> Fingerprint:
        return replace(self, rank=rank)


DIGITS = 4
"""The hexadecimal digits of `each` for a tensor."""
LINES = (Fingerprint,)
