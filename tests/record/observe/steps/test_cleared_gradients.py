"""How it is known that a program has cleared gradients, and so that a loss is none of the step's."""

from __future__ import annotations

import pytest
import torch
from observing import observed
from torch import Tensor, nn


def losses_of(model: nn.Module, *, set_to_none: bool) -> list[float]:
    """Those of a step of two passes, of losses 1 and 2, between which gradients are cleared."""

    def program() -> nn.Module:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for value in (1.0, 2.0):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = model(torch.ones(1, 2)).sum()
            (loss - loss.detach() + value).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return model

    return observed(program).only.losses


@pytest.mark.parametrize("set_to_none", [False, True])
def test_one_parameter_is_enough(set_to_none: bool) -> None:
    assert losses_of(nn.Linear(2, 1, bias=False), set_to_none=set_to_none) == [2.0]


class Idle(nn.Module):
    """A layer, and small parameters whose gradients are zeros."""

    def __init__(self, idle: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)
        self.idle = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(idle))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + sum(p * 0 for p in self.idle)


@pytest.mark.sweep
def test_of_gradients_set_to_zero_the_eight_smallest_are_read() -> None:
    """To read more takes time in each pass. Where those are zeros anyway, the losses count as one step's."""
    assert losses_of(Idle(7), set_to_none=False) == [2.0]
    assert losses_of(Idle(8), set_to_none=False) == [1.0, 2.0]
    assert losses_of(Idle(8), set_to_none=True) == [2.0]
