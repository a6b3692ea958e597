"""The training step whose memory is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature

import torch
from torch import nn

from hookcli.errors import UsageError
from hookcli.hooks.option_values import MEMORY_OPTIMIZER

_MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "sgd-momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adafactor": torch.optim.Adafactor,
}
_FLAGS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Settings of a training step, or of inference: one forward without gradients.

    `optimizer`: the name of one of PyTorch's, "none" for a step that ends with backward. `implementation`: "for-loop",
    "foreach" or "fused"; None for PyTorch's choice on the device. Gradients are released before each forward, as
    `zero_grad()` does. `amp`: the precision in which `torch.autocast` runs the forward. `checkpoint`: patterns of
    modules whose activations `torch.utils.checkpoint` drops and recomputes. `device`: "cpu" or "cuda", whose kernels
    and allocator the figures are of; it need not be at hand. `ops`: "functions" tells what operators of modules hold.
    """

    optimizer: str = MEMORY_OPTIMIZER
    implementation: str | None = None
    inference: bool = False
    amp: torch.dtype | None = None
    checkpoint: Sequence[str] = ()
    device: str = "cpu"
    ops: str | None = None

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
        """The optimizer as PyTorch makes it on the device; None without one, or without parameters.

        Raises UsageError for one that PyTorch does not have in the plan's implementation.
        """
        if self.optimizer == "none" or not parameters:
            return None
        maker, implementation = _MAKERS[self.optimizer], self.implementation
        if implementation is None and self.device == "cuda" and self.optimizer != "adafactor":
            implementation = "foreach"  # Adafactor's default is the one that takes less memory
        flags, accepted = _FLAGS.get(implementation or "", {}), signature(maker).parameters
        if not flags.keys() <= accepted.keys():
            names = ", ".join(name for name, needed in _FLAGS.items() if needed.keys() <= accepted.keys())
            wrong = f"--implementation {implementation}: PyTorch's {self.optimizer} has none; choose from: {names}"
            raise UsageError(wrong, option="implementation")
        return maker(parameters, lr=1e-3, **flags)
