"""Recurrent layers take the CPU's way, which differs from that of the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import swept
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from hookcli.capabilities.memory.plan import MemoryPlan
from hookcli.capabilities.memory.simulate import simulate
from hookcli.engine.setting import Setting
from hookcli.sources.base import InputSpec, Recipe

pytestmark = pytest.mark.xdist_group("profiler")  # which takes a second to start


class Net(nn.Module):
    def __init__(self, layer: type[nn.RNNBase], options: dict[str, Any], packed: bool = False) -> None:
        super().__init__()
        self.layer, self.packed = layer(16, 32, **options), packed

    def forward(self, x: Tensor) -> Any:
        if self.packed:
            return self.layer(nn.utils.rnn.pack_padded_sequence(x, [20, 18, 18, 5]))[0].data
        return self.layer(x)[0]


def measured(make: Any, x: Tensor) -> int:
    """The peak of a training step of a new model, as PyTorch's profiler sees the CPU's allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        x = x.clone()
        make()(x).sum().backward()
    events: Any = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    used, peak = 0, 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        used += event.nbytes()
        peak = max(peak, used)
    return peak


@pytest.mark.parametrize(
    ("layer", "options", "packed", "lowest"),
    [
        swept(nn.RNN, {}, False, 1.0),
        swept(nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}, False, 1.0),
        swept(nn.LSTM, {"proj_size": 8}, False, 1.0),
        (nn.LSTM, {}, True, 1.0),
        (nn.LSTM, {}, False, 0.7),  # oneDNN's own memory in backward is not included, as the note says
        swept(nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.5}, False, 0.7),
    ],
)
def test_a_recurrent_layer_holds_what_the_cpu_holds(
    layer: type[nn.RNNBase], options: dict[str, Any], packed: bool, lowest: float
) -> None:
    def make() -> Net:
        return Net(layer, options, packed)

    x = torch.randn(20, 4, 16)
    truth = measured(make, x)
    recipe = Recipe("net", make, (InputSpec(tuple(x.shape)),))
    found = simulate(recipe, Setting(train=True), MemoryPlan(optimizer="none"))
    share = found.steady.peak.highest / truth
    assert lowest - 0.002 < share < 1.002
    noted = any("oneDNN takes while it computes an LSTM" in note for note in found.notes)
    assert noted is (layer is nn.LSTM and not options.get("proj_size"))
