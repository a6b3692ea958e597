"""Warnings that only a run without gradients provokes, which the user did not ask for, are not shown."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import each_once
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli import check, report


class Net(nn.Module):
    def __init__(self, warns: Callable[[Any], bool]) -> None:
        super().__init__()
        self.stem, self.block, self.warns = nn.Linear(6, 6), nn.Linear(6, 6), warns

    def forward(self, x: Tensor) -> Tensor:
        if self.warns(self):
            warnings.warn("the model's own", stacklevel=1)
        return self.block(self.stem(x))


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.block, self.stem(x), use_reentrant=True)
        return y


class AtInput(Net):
    """Checkpoints its first layer, whose input needs no gradient: PyTorch's warning is the answer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.block(checkpoint(self.stem, x, use_reentrant=True))


def shown(function: Callable[..., object], model: nn.Module) -> set[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        function(model.train(), torch.randn(8, 6))
    return {str(one.message).partition(".")[0] for one in caught}


NONE = "None of the inputs have requires_grad=True"
CASES: dict[str, tuple[type[Net], Callable[[Any], bool], set[str]]] = {
    "a checkpoint whose input needs a gradient": (Checkpointed, lambda m: False, set()),
    "a checkpoint whose input needs none": (AtInput, lambda m: False, {NONE}),
    "always": (Net, lambda m: True, {"the model's own"}),
    "in training alone": (Net, lambda m: m.training, {"the model's own"}),
    "in eval mode alone": (Net, lambda m: not m.training, {"the model's own"}),
    "without gradients alone": (Net, lambda m: not torch.is_grad_enabled(), set()),
}


@pytest.mark.parametrize(("function", "case"), each_once([check, report], CASES))
def test_warnings_are_those_of_the_runs_with_gradients(case: str, function: Callable[..., object]) -> None:
    kind, warns, expected = CASES[case]
    assert shown(function, kind(warns)) == expected
