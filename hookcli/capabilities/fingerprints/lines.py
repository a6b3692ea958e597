"""The lines of a record that tell the state of a training, and the values in a step, apart from any other."""

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
    generators, PyTorch's the first. `received`: the bits of the tensors that the model received, `returned`: of those
    that it returned, `targets`: of those that losses such as cross_entropy have as their targets, and `loss`: of all
    that the loss keeps for backward.

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
    returned: str = ""
    targets: str = ""
    loss: str = ""
    each: str = ""
    names: Sequence[str] = field(default_factory=tuple)
    after: bool = False
    rank: int = 0

    def of_rank(self, rank: int) -> Fingerprint:
        return replace(self, rank=rank)


@dataclass(frozen=True, slots=True)
class Values(PartLine):
    """Digests of the values in a recorded step, if operators were recorded, too: `VALUE_DIGITS` for each tensor.

    `outputs`: what modules and operators returned, in the order of their calls. `gradients`: the outputs' gradients as
    they arrived, and then those that optimizers took. The names are left out where the line before has the same.
    """

    kind: ClassVar[str] = "values"

    outputs: str = ""
    output_names: Sequence[str] = field(default_factory=tuple)
    gradients: str = ""
    gradient_names: Sequence[str] = field(default_factory=tuple)
    rank: int = 0

    def of_rank(self, rank: int) -> Values:
        return replace(self, rank=rank)


DIGITS, VALUE_DIGITS = 4, 8
"""The hexadecimal digits of `each` for a tensor, and of `Values`."""
LINES = (Fingerprint, Values)
