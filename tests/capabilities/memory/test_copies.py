"""Matrices that BLAS can't take as they are: it gets copies, which count."""

from __future__ import annotations

import pytest
from capabilities.memory.test_simulate import SCALARS, measured
from torch import Tensor, nn

from hookcli.capabilities.memory.plan import MemoryPlan
from hookcli.capabilities.memory.simulate import simulate
from hookcli.engine.setting import Setting
from hookcli.sources.base import InputSpec, Recipe


class Expanded(nn.Module):
    """A linear layer whose input is expanded, so that BLAS needs a copy, and one whose gradient the loss expands."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(64, 1), nn.Linear(512, 2048)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.narrow(x).expand(-1, 512))


def test_matrices_that_blas_cannot_take_are_copied() -> None:
    recipe = Recipe("expanded", Expanded, (InputSpec((256, 64)),))
    found = simulate(recipe, Setting(train=True), MemoryPlan("sgd"))
    assert found.steady.peak.highest == pytest.approx(measured(Expanded, (256, 64), "sgd")[1], abs=SCALARS)
