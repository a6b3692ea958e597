"""The training step whose memory is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hookcli.errors import UsageError, unknown
from hookcli.hooks.option_values import IMPLEMENTATIONS, MEMORY_DEVICES, MEMORY_OPTIMIZER, MEMORY_OPTIMIZERS, OPS


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Settings of a training step, or of inference: one forward without gradients.

    `optimizer`: the name of one of PyTorch's, "none" for a step that ends with backward. `implementation`: "for-loop",
    "foreach" or "fused"; None for PyTorch's choice on the device. Gradients are released before each forward, as
    `zero_grad()` does. `amp`: the precision in which `torch.autocast` runs the forward. `checkpoint`: patterns of
    modules whose activations `torch.utils.checkpoint` drops and recomputes. `device`: "cpu" or "cuda", whose kernels
    and allocator the figures are of; it need not be at hand. `ops`: "functions" tells what operators of modules hold.
    Raises UsageError for an unknown name.
    """

    optimizer: str = MEMORY_OPTIMIZER
    implementation: str | None = None
    inference: bool = False
    amp: torch.dtype | None = None
    checkpoint: Sequence[str] = ()
    device: str = "cpu"
    ops: str | None = None

    def __post_init__(self) -> None:
        for what, given, known in (
            ("--optimizer", self.optimizer, MEMORY_OPTIMIZERS),
            ("implementation", self.implementation, IMPLEMENTATIONS),
            ("device", self.device, MEMORY_DEVICES),
            ("--ops", self.ops, OPS[:1]),
        ):
            if given is not None and given not in known:
                raise UsageError(unknown(what, given, known))
