"""Models that change what they get."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from support import equal, untouched
from torch import Tensor, nn

from hookcli.probes.base import Probe
from hookcli.probes.grads import GradsProbe
from hookcli.tensors.random_state import random_states

PROBES = ("shapes", "inputs", "activations", "grads", "trace", "graph")


class Restless(nn.Module):
    """Changes whatever a forward can change: itself, its input, and three random number generators."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.encoder, self.momentum, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.zeros(3))
        self.lent = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("average", torch.zeros(4))
        self.late: nn.Parameter | None = None

    def forward(self, x: Tensor) -> Tensor:
        for old, new in zip(self.momentum.parameters(), self.encoder.parameters(), strict=True):
            old.data.mul_(0.9).add_(new.data, alpha=0.1)
        self.head.weight.data.mul_(0.5)
        self.scale.data.mul_(-1)  # zeros, whose sign is all that changes
        self.lent.data = torch.zeros(5, dtype=torch.float16)
        self.head.bias = nn.Parameter(torch.ones(2))
        self.late = nn.Parameter(torch.ones(1))
        self.extra = nn.Linear(4, 4)
        self.encoder.bias.requires_grad_(False)
        self.momentum.train(not self.momentum.training)
        self.count = self.count + 1
        x.mul_(2)
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        y = self.momentum(self.encoder(x)) + noise
        self.average.add_(y.mean(0))  # with gradients, the buffer becomes part of the graph
        if self.fails:
            raise ValueError("enough")
        return self.head(y)


def made(probe: str) -> str | Probe:
    return GradsProbe(probe.rpartition(" ")[2]) if " of " in probe else probe  # type: ignore[arg-type]


@contextmanager
def as_before(model: nn.Module, *inputs: Tensor) -> Iterator[None]:
    """Assert that nothing is different after the block: bits, objects, attributes, versions, random states."""

    def state() -> dict[str, Any]:
        tensors = [*model.parameters(), *model.buffers(), *inputs]
        return {
            "objects": [id(x) for x in tensors],
            "names": [name for name, _ in (*model.named_parameters(), *model.named_buffers(), *model.named_modules())],
            "memory": [x.data_ptr() for x in tensors],
            "versions": [x._version for x in tensors],
            "graph": [(x.is_leaf, x.requires_grad) for x in tensors],
            "bits": [x.detach().clone().contiguous().view(torch.uint8) for x in tensors if x.dim()],
            "strides": [x.stride() for x in tensors],
            "attributes": {name for m in model.modules() for name in vars(m)},
        }

    states, before = random_states([]), state()
    with untouched(model):
        try:
            yield
        finally:
            after = state()
            for key, value in before.items():
                assert equal(value, after[key]) if key == "bits" else value == after[key], f"{key} changed"
            assert states.same(random_states([]))


def given() -> Tensor:
    return torch.randn(3, 4)


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)
