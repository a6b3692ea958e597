"""Simulated activation checkpointing against PyTorch's profiler and a real step under torch.utils.checkpoint."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

from hookcli.capabilities.memory.plan import MemoryPlan, outermost
from hookcli.capabilities.memory.simulate import simulate
from hookcli.engine.setting import Setting
from hookcli.sources.base import InputSpec, Recipe

RANDOM_STATES = 4 * 5056
"""Bytes of the random generator's states that checkpointing keeps: one for each of four regions, none an operator's."""


class Blocks(nn.Module):
    """Blocks that keep several tensors each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32), nn.GELU()) for _ in range(4)
        )
        self.checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def measured(checkpointed: bool) -> int:
    """The peak of a step, by PyTorch's profiler."""
    used, peak = 0, 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        model, x = Blocks(), torch.randn(1024, 32)
        model.checkpointed = checkpointed
        with record_function("a step"):
            model(x).sum().backward()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    begin = next(event.start_ns() for event in events if event.name() == "a step")
    for event in (event for event in events if event.name() == "[memory]"):
        used += event.nbytes()
        peak = max(peak, used) if event.start_ns() >= begin else peak
    return peak


@pytest.mark.parametrize("patterns", [(), ("blocks.*",)])
def test_the_peak_is_that_of_a_real_step(patterns: tuple[str, ...]) -> None:
    recipe = Recipe("blocks", Blocks, (InputSpec((1024, 32)),))
    found = simulate(recipe, Setting(train=True), MemoryPlan("none", checkpoint=patterns))
    assert found.checkpointed == [f"blocks.{i}" for i in range(4)] * bool(patterns)
    assert found.steady.peak.highest == pytest.approx(measured(bool(patterns)), abs=RANDOM_STATES * bool(patterns))


def test_of_modules_within_each_other_the_outermost_are_taken() -> None:
    assert outermost(Blocks(), ["blocks.0", "blocks.0.*", "Tanh"]) == [
        "blocks.0",
        *(f"blocks.{i}.1" for i in (1, 2, 3)),
    ]
    assert outermost(Blocks(), ["*"]) == [""]
