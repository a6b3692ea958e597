"""Models of libraries, seen inside their compiled programs: rows, counts and gradients are those of eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hooks.compiled.test_looks import TORCH, assert_same_rows
from support import needs_inductor, swept, untouched
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import hookcli
from hookcli.probes.grads import GradsProbe

pytestmark = pytest.mark.xdist_group("torch.compile")  # whose imports and precompiled headers one worker needs


def llama() -> tuple[nn.Module, Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(num_hidden_layers=1, vocab_size=64, use_cache=False, **sizes)
    return LlamaForCausalLM(config), torch.randint(64, (2, 8))


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


def recomputed() -> tuple[nn.Module, Tensor]:
    return Recomputed(), torch.randn(3, 8)


def encoder() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 1)), torch.randn(2, 5, 8)


def perceptron() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)), torch.randn(4, 8)


def probes() -> list[Any]:
    return [GradsProbe("parameters"), GradsProbe("outputs"), GradsProbe("inputs"), "activations"]


@pytest.mark.parametrize(
    ("make", "backend"),
    [
        (recomputed, "aot_eager"),
        *(swept(make, "aot_eager") for make in (llama, encoder)),
        pytest.param(perceptron, "inductor", marks=[needs_inductor, pytest.mark.sweep]),
    ],
)
def test_rows_of_a_training_step_are_those_of_eager_mode(make: Callable[[], Any], backend: str) -> None:
    model, x = make()
    model.train()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    step = hookcli.Step(backward_vector="randn")
    eager = hookcli.capture(model, x, probes=probes(), step=step)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    with untouched(model):
        seen = hookcli.capture(compiled, x, probes=probes(), step=step)
    assert counter.frame_count == 2 and not counters["graph_break"]
    for one, other in zip(eager, seen, strict=True):
        assert_same_rows(one, other, tolerance=1e-4)


@needs_inductor
@pytest.mark.parametrize("emulates", [swept(False), swept(True)])
def test_in_bfloat16_looks_move_what_inductor_fuses_unless_it_rounds_there_too(emulates: bool, own_notes: None) -> None:
    model, x = perceptron()
    model, x = model.to(torch.bfloat16), x.to(torch.bfloat16)
    compiled = torch.compile(model, fullgraph=True)
    report = hookcli.capture(compiled, x, probes=GradsProbe("outputs"), emulate_casts=emulates)
    same = "inductor: outputs and gradients bit-identical" in report.meta["compiled"]
    if emulates and not TORCH >= (2, 13):
        [note] = [note for note in report.meta["notes"] if "--emulate-casts" in note]
        assert note.endswith("--emulate-casts has no effect in inductor's programs for the CPU before 2.13")
        return
    assert same == emulates and ("looks move outputs by " in report.meta["compiled"]) != emulates


@pytest.mark.sweep
def test_the_fused_path_that_looks_leave_is_said() -> None:
    model, x = encoder()
    compiled = torch.compile(model.eval(), backend="aot_eager")
    report = hookcli.capture(compiled, x, probes="activations")
    assert "in which TransformerEncoderLayer takes its fused path" in report.meta["compiled"]
    assert "0.layers.0.linear1" in {row.fqn for row in report.rows}
    plain = hookcli.capture(compiled, x, probes="activations", fastpath=False)
    assert "fused path" not in plain.meta["compiled"]
