"""Memory of CUDA, simulated without a GPU, against figures computed by hand from the allocator's blocks."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from hookcli.capabilities.memory.plan import MemoryPlan
from hookcli.capabilities.memory.profile import Kind, StepMemory
from hookcli.capabilities.memory.simulate import simulate
from hookcli.engine.setting import Setting
from hookcli.sources.base import InputSpec, Recipe

LINEAR = Recipe("linear", partial(nn.Linear, 10, 20), (InputSpec((7, 10)),))
PARAMETERS = 1024 + 512
"""800 and 80 bytes in blocks of 512."""
INPUT, LOSS = 512, 512


def step(recipe: Recipe, optimizer: str, way: str | None = None, **plan: torch.dtype) -> StepMemory:
    setting = Setting(train=True, dtype=plan.pop("dtype", None))
    return simulate(recipe, setting, MemoryPlan(optimizer, way, device="cuda", **plan)).steady


def test_blocks_of_the_allocator() -> None:
    found = step(LINEAR, "sgd")
    output, ones = 1024, 512  # the gradient of the loss
    assert found.by_phase() == {
        "forward": PARAMETERS + INPUT + output,
        "loss": PARAMETERS + INPUT + output + LOSS,
        "backward": 2 * PARAMETERS + INPUT + LOSS + ones,
    }
    assert found.peak.held[Kind.PARAMETERS] == PARAMETERS


@pytest.mark.parametrize(
    ("way", "counts", "temporaries"),
    [
        (None, 0, PARAMETERS),  # foreach: a root of each second moment; step counts stay on the CPU
        ("for-loop", 0, 2 * 1024),  # a root and a quotient of the largest
        ("fused", 2 * 512, 0),  # step counts are on the GPU
    ],
)
def test_an_optimizer_takes_what_its_implementation_takes(way: str | None, counts: int, temporaries: int) -> None:
    found = step(LINEAR, "adamw", way)
    assert found.peak.held[Kind.OPTIMIZER_STATE] == 2 * PARAMETERS + counts
    assert found.by_phase().get("step", 0) == (4 * PARAMETERS + INPUT + temporaries) * bool(temporaries)


class Attend(nn.Module):
    """Attention of a tensor to itself, 96 items in 4 heads of 16, and dropout."""

    def __init__(self, masked: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.register_buffer("mask", torch.zeros(96, 96) if masked else None)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return functional.dropout(functional.scaled_dot_product_attention(x, x, x, attn_mask=self.mask), 0.1)


def changes(found: StepMemory) -> dict[str, int]:
    """By operator of the forward, the bytes that it created."""
    moments = [moment for moment in found.timeline if moment.phase == "forward"]
    return {b.operator.removeprefix("aten."): b.bytes - a.bytes for a, b in pairwise(moments)}


NUMBERS = 2 * 4 * 96 * 16
SUMS = 2 * 4 * 96 * 4
"""The bytes of the logarithm of each query's sum of exponentials."""
RANDOM = 2 * 512
"""The random generator's seed and offset."""
KERNELS = {
    (torch.bfloat16, False): ("_scaled_dot_product_flash_attention", NUMBERS * 2 + SUMS + RANDOM),
    (torch.bfloat16, True): ("_scaled_dot_product_efficient_attention", NUMBERS * 2 + SUMS + RANDOM),
    (torch.float32, False): ("_scaled_dot_product_efficient_attention", NUMBERS * 4 + SUMS + RANDOM),
    (torch.float64, False): ("_safe_softmax", 2 * 4 * 96 * 96 * 8),  # no fused kernel: every weight
}
WORKSPACES = {
    torch.bfloat16: 4 * 2 * 4 * 128 * (32 + 1),  # rows and channels are padded
    torch.float32: SUMS,
}


@pytest.mark.parametrize(("dtype", "masked"), KERNELS)
def test_attention_keeps_what_the_kernel_for_its_arguments_keeps(dtype: torch.dtype, masked: bool) -> None:
    recipe = Recipe("attend", partial(Attend, masked), (InputSpec((2, 4, 96, 16)),))
    found = step(recipe, "none", dtype=dtype)
    operator, kept = KERNELS[dtype, masked]
    created = changes(found)
    assert created[operator] == kept
    assert created["native_dropout"] == NUMBERS * dtype.itemsize + NUMBERS  # a byte for each number's mask
    if not masked and dtype in WORKSPACES:
        [backward] = [m for m in found.timeline if m.operator == f"aten.{operator}_backward"]
        assert backward.highest - backward.bytes == WORKSPACES[dtype]


def test_autocast_norms_in_float32_and_multiplies_in_half_precision() -> None:
    net = partial(nn.Sequential, nn.Linear(16, 16), nn.LayerNorm(16))
    found = step(Recipe("net", net, (InputSpec((512, 16)),)), "none", amp=torch.bfloat16)
    created = changes(found)
    assert created["addmm"] == 512 * 16 * 2
    assert created["native_layer_norm"] == 512 * 16 * 4 + 2 * 512 * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_simulated_memory_is_what_the_allocator_hands_out(optimizer: str) -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8)))

    torch.mm(*torch.ones(2, 64, 64, device="cuda")).sum().item()  # the workspace of cuBLAS stays
    before, model, x = torch.cuda.memory_allocated(), build().cuda(), torch.randn(4096, 2048, device="cuda")
    made = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer](model.parameters(), lr=1e-3)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        made.zero_grad()
        model(x).sum().backward()
        made.step()
    recipe = Recipe("linear", build, (InputSpec((4096, 2048)),))
    found = simulate(recipe, Setting(train=True), MemoryPlan(optimizer, device="cuda"))
    assert found.steady.peak.highest == pytest.approx(torch.cuda.max_memory_allocated() - before, rel=0.05)
