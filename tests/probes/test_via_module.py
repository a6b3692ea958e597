"""`grads --via module`: PyTorch's own full backward hooks, held against tensor hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from probes.two_ways import Of, assert_same, both
from small_models import each, small
from support import Hand, Shared, assert_stats, float64_stats, swept
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli import Step, capture
from hookcli.probes.grads import GradsProbe

Cli = Callable[..., Any]


MODELS: dict[str, tuple[int, ...]] = {
    "swin_t": (2, 3, 64, 64),
    "quantized_resnet18": (2, 3, 32, 32),
    "vit_b_32": (1, 3, 64, 64),
    "swin3d_t": (1, 3, 4, 64, 64),
}
LIKE_OTHERS = ("quantized_resnet18", "swin3d_t")


@pytest.mark.sweep
@pytest.mark.parametrize("of", ["outputs", swept("inputs")])
@pytest.mark.parametrize(("make", "name"), [swept(*p.values) if p.id in LIKE_OTHERS else p for p in each(MODELS)])
def test_both_ways_agree_on_torchvision_models(make: Callable[[], nn.Module], name: str, of: Of) -> None:
    torch.manual_seed(0)
    model = make().double().eval()
    compared = assert_same(*both(model, torch.randn(MODELS[name], dtype=torch.float64), of))
    assert compared > 50


@pytest.mark.parametrize("of", [*map(swept, ("outputs", "inputs"))])
def test_both_ways_agree_in_training_mode(of: Of) -> None:
    torch.manual_seed(0)
    model = small("swin_t").double().train()
    assert assert_same(*both(model, torch.randn(2, 3, 64, 64, dtype=torch.float64), of)) > 50


def test_by_hand() -> None:
    """x = [1, 2]: first gives [1, 3]; every gradient before out is 3, and 2 * 3 at the input."""
    model, x = Hand(), torch.tensor([[1.0, 2.0]])
    [outputs] = capture(model, x, [GradsProbe("outputs", "module")])
    [inputs] = capture(model, x, [GradsProbe("inputs", "module")])
    values = {(report.rows[0]["kind"], row.fqn): row for report in (outputs, inputs) for row in report.rows}
    expected = {
        ("output", "out"): [1.0], ("output", "relu"): [3.0, 3.0], ("output", "first"): [3.0, 3.0],
        ("input", "out"): [3.0, 3.0], ("input", "relu"): [3.0, 3.0], ("input", "first"): [6.0, 6.0],
        ("output", ""): [1.0], ("input", ""): [6.0, 6.0],
    }  # fmt: skip
    assert values.keys() == expected.keys()
    for key, numbers in expected.items():
        assert_stats(values[key].stats, float64_stats(torch.tensor(numbers)))
    assert [row["index"] for row in outputs.rows] == [0, 1, 2, 3]


def test_the_figures_are_those_of_hooks_by_hand() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    x, seen = torch.randn(5, 4, dtype=torch.float64), {}
    twin = copy.deepcopy(model)
    for fqn, module in twin.named_modules():
        module.register_full_backward_hook(lambda m, i, o, fqn=fqn: seen.update({fqn: (i[0], o[0])}))
    twin(x.clone().requires_grad_()).sum().backward()
    for of, which in (("inputs", 0), ("outputs", 1)):
        [report] = capture(model, x, [GradsProbe(of, "module")])  # type: ignore[arg-type]
        assert {row.fqn for row in report.rows} == seen.keys()
        for row in report.rows:
            assert_stats(row.stats, float64_stats(seen[row.fqn][which]))


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_calls_and_passes_are_told_apart(passes: int) -> None:
    model, ids = Shared().double(), torch.tensor([[1, 2]])
    tensor, module = both(model, ids, "outputs", step=Step(passes=passes))
    assert assert_same(tensor, module) == passes * 6
    calls = [row["call"] for row in module.rows if row.fqn == "mix"]
    assert calls == [call for n in range(passes) for call in (3 * n + 2, 3 * n + 1, 3 * n)]


class Siamese(nn.Module):
    """Called three times, of which the second's result goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.twin = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        first, _, third = self.twin(x), self.twin(2 * x), self.twin(3 * x)
        return first * 5 + third


@pytest.mark.parametrize("of", ["outputs", "inputs"])
def test_a_call_whose_result_goes_nowhere_is_not_taken_for_another(of: Of) -> None:
    torch.manual_seed(0)
    tensor, module = both(Siamese().double(), torch.randn(2, 3, dtype=torch.float64), of)
    assert assert_same(tensor, module) == 7  # the model, and twice each of twin, twin.0, twin.1
    assert sorted(row["call"] for row in module.rows if row.fqn == "twin") == [0, 2]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.zero, self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(checkpoint(self.one, torch.tanh(self.zero(x)), use_reentrant=self.reentrant))


@pytest.mark.parametrize("of", ["outputs", "inputs"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_under_activation_checkpointing(reentrant: bool, of: Of) -> None:
    torch.manual_seed(0)
    tensor, module = both(
        Checkpointed(reentrant).double(), torch.randn(2, 3, dtype=torch.float64), of, step=Step(passes=2)
    )
    assert assert_same(tensor, module) == 8  # the model and its three layers, twice
