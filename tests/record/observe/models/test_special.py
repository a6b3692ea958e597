"""What scripts do to models: checkpointing, transforms, tracing. What can't be seen is said."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from observing import observed, rows, skipped
from small_models import Parts
from support import assert_stats, float64_stats, swept
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(self.up(x).relu()))


class Blocks(nn.Module):
    """Block by block checkpointed, in `mode`: "reentrant", "new", or "off"."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) if self.mode == "off" else checkpoint(block, x, use_reentrant=self.mode == "reentrant")
        return x


@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["reentrant", "new"])
def test_checkpointed_modules_are_counted_once(mode: str) -> None:
    def training(mode: str) -> Callable[[], nn.Module]:
        def program() -> nn.Module:
            model = Blocks(mode)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(5, 4, requires_grad=True)).pow(2).sum().backward()
                optimizer.step()
            return model

        return program

    seen, plain = observed(training(mode)), observed(training("off"))
    assert seen.steps() == [0, 1] and seen.ran["Blocks"].forwards == 2
    for recorded, expected in zip(seen.recorded, plain.recorded, strict=True):
        assert len(recorded.losses) == 1 and recorded.losses == expected.losses
        for probe, kind in (("activations", None), ("grads", "output"), ("grads", "parameter")):
            found, other = rows(recorded, probe, kind), rows(expected, probe, kind)
            assert found and found.keys() == other.keys()
            for fqn, row in found.items():
                assert row["calls"] == 1
                assert_stats(row.stats, other[fqn].stats)  # type: ignore[arg-type]


def test_checkpoint_sequential() -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
        checkpoint_sequential(model, 2, torch.ones(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
        return model

    seen = observed(program)
    assert {name: ran.forwards for name, ran in seen.ran.items()} == {"Sequential.0": 1, "Sequential.2": 1}


TRANSFORMS: dict[str, Callable[[nn.Module], Any]] = {
    "torch.func": lambda m: grad(lambda p: functional_call(m, p, (torch.ones(2, 4),)).sum())(params(m))["weight"],
    "vmap": lambda m: vmap(lambda x: m(x))(torch.ones(5, 4)),
    "per-sample gradients": lambda m: vmap(
        grad(lambda p, x: functional_call(m, p, (x,)).sum()), in_dims=(None, 0)
    )(params(m), torch.randn(5, 4))["weight"],
}  # fmt: skip


def params(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_left_alone_and_told(name: str) -> None:
    seen = observed(lambda: TRANSFORMS[name](nn.Linear(4, 1)))
    assert seen.recorded == [] and any("torch.func or vmap" in note for note in seen.ran["Linear"].notes)


def flops(model: nn.Module) -> int:
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(2, 4))
    return int(counter.get_total_flops())


def fake(model: nn.Module) -> list[int]:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return list(model(mode.from_tensor(torch.ones(2, 4))).shape)


@pytest.mark.parametrize("under", [flops, fake])
def test_under_a_dispatch_mode_nothing_is_computed(under: Callable[[nn.Module], Any]) -> None:
    seen = observed(lambda: under(nn.Linear(4, 1)))
    assert seen.recorded == [] and any("Mode" in note for note in seen.ran["Linear"].notes)


@pytest.mark.sweep
def test_what_is_traced_or_scripted() -> None:
    def program() -> list[Tensor]:
        model, x = Parts(), torch.ones(2, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            traced, scripted = torch.jit.trace(model, x), torch.jit.script(model)
        exported = torch.export.export(model, (x,))
        code = exported.graph_module.code
        return [traced(x), scripted(x), exported.module()(x), str(traced.code), str(code)]  # type: ignore[list-item]

    seen = observed(program)
    assert "Parts" not in seen.ran or seen.ran["Parts"].forwards == 0
    assert any("TorchScript" in note for ran in seen.ran.values() for note in ran.notes)


@pytest.mark.sweep
def test_a_part_that_is_torchscript() -> None:
    def program() -> Tensor:
        model = Parts()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            model.inner = torch.jit.script(model.inner)
        return model(torch.ones(1, 4))

    (recorded,) = observed(program).of(phase="train")
    assert "TorchScript takes no hooks" in skipped(recorded, "activations")["inner"]
    assert rows(recorded, "activations").keys() == {"", "first", "last"}


def test_inference_mode_and_integer_models() -> None:
    def program() -> list[Tensor]:
        model = nn.Embedding(5, 3)
        with torch.inference_mode():
            return [model(torch.arange(4))]

    (recorded,) = observed(program).of(phase="no_grad")
    torch.manual_seed(0)
    assert_stats(rows(recorded, "activations")[""].stats, float64_stats(nn.Embedding(5, 3)(torch.arange(4))))


def test_an_attention_layer_keeps_its_fused_path() -> None:
    def program() -> Tensor:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        with torch.no_grad():
            return layer(torch.randn(2, 5, 8))

    (recorded,) = observed(program).of(phase="no_grad")  # the fused path has other bits
    assert "fused path" in skipped(recorded, "activations")["linear1"]


class Shifted(nn.Module):
    """Wraps a model, as solvers of differential equations do anew in each call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x + 1e-3)
        return y


@pytest.mark.parametrize("module", ["a_program", swept("torch_solver.misc")])
def test_a_wrapper_that_is_made_anew_in_each_call_is_one_model(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the program's own, or of a library's: the model is then the program's."""
    library = ModuleType("torch_solver")
    library.__file__ = "/venv/site-packages/torch_solver/__init__.py"
    monkeypatch.setitem(sys.modules, "torch_solver", library)
    monkeypatch.setattr(Shifted, "__module__", module)

    def program() -> nn.Module:
        model = Parts()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            sum(Shifted(model)(torch.ones(2, 4)).pow(2).mean() for _ in range(3)).backward()
            optimizer.step()
        return model

    seen = observed(program)
    (ran,) = seen.ran.values()
    assert (ran.model, ran.forwards, ran.steps) == ("Shifted" if module == "a_program" else "Parts", 12, 4)
    assert seen.steps() == [0, 1, 2, 3] and all(step.losses for step in seen.recorded)
    for step in seen.recorded[module == "a_program" :]:
        assert {"first", "last"} <= rows(step, "activations").keys()
        assert rows(step, "activations")["first"]["calls"] == 3
