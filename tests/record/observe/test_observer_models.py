"""Hooks change nothing on torchvision's models, and where tensors are shared or overwritten."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from record.observe.observed_models import PROBES, WIDTH, Residual, assert_grads_match, run
from small_models import each, small
from support import assert_stats, equal, float64_stats, swept
from torch import Tensor, nn

from hookcli.probes.grads import GradsProbe
from hookcli.record.watch import watch

MODELS = (
    "resnet18", "densenet121", "mobilenet_v3_small", "convnext_tiny", "swin_t", "googlenet", "vit_b_32",
    "lraspp_mobilenet_v3_large", "regnet_x_400mf",
)  # fmt: skip
LIKE_OTHERS = (
    "lraspp_mobilenet_v3_large", "mobilenet_v3_small", "regnet_x_400mf", "googlenet", "resnet18",
)  # of which others have all kinds of layers  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("make", "name", "of"),
    [
        pytest.param(
            *model.values,
            of,
            id=f"{model.id}-{of}",
            marks=[*model.marks, *([] if first and model.id not in LIKE_OTHERS else [pytest.mark.sweep])],
        )
        for number, model in enumerate(each(MODELS))
        for of, first in (("outputs", number % 2 == 0), ("inputs", number % 2 == 1))
    ],
)
def test_gradients_of_torchvision_models_are_right(make: Callable[[], nn.Module], name: str, of: str) -> None:
    torch.manual_seed(0)
    size, model = 32 if name == "densenet121" else 64, make().double().eval()
    compared = assert_grads_match(model, torch.randn(2, 3, size, size, dtype=torch.float64), of)
    assert compared > 40


@pytest.mark.sweep
@pytest.mark.parametrize("name", [swept("resnet18"), swept("mobilenet_v3_small"), "densenet121"])
@pytest.mark.parametrize(
    "probe", [name if name in ("activations", "inputs' grads") else swept(name) for name in sorted(PROBES)]
)
def test_torchvision_models_run_bit_for_bit_as_without_hooks(name: str, probe: str) -> None:
    torch.manual_seed(0)
    model = small(name).train()
    x = torch.randn(2, 3, 64, 64)
    make, grad = PROBES[probe]
    expected = run(copy.deepcopy(model), x, grad=grad)
    with watch(model, [make()]):
        found = run(model, x, grad=grad)
    assert equal(expected, found)


class Pyramid(nn.Module):
    """A block that uses its input twice, and a later use of the same tensor, as in a feature pyramid."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Linear(WIDTH, WIDTH), Residual(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        low = self.stem(x)
        return self.block(low) + torch.tanh(low)


def test_where_a_container_and_a_later_user_share_an_input_sums_are_the_same() -> None:
    """Nothing is added to the graph, so that not even the order changes in which three gradients are added."""
    torch.manual_seed(0)
    model, x = Pyramid(), torch.randn(4, WIDTH)
    expected = run(copy.deepcopy(model), x, grad=True)
    for of in ("outputs", "inputs"):
        twin = copy.deepcopy(model)
        with watch(twin, [GradsProbe(of)]):  # type: ignore[arg-type]
            found = run(twin, x, grad=True)
        assert equal(expected, found)
        assert_grads_match(copy.deepcopy(model), x, of)


def test_a_list_that_a_module_changes_is_still_the_callers() -> None:
    class Appends(nn.Module):
        def forward(self, parts: list[Tensor]) -> Tensor:
            parts.append(parts[0] * 2)
            return torch.stack(parts).sum(0)

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Appends()

        def forward(self, x: Tensor) -> Tensor:
            parts = [x]
            self.inner(parts)
            return parts[-1]

    model, x = Caller(), torch.ones(2, requires_grad=True)
    with watch(model, [GradsProbe("inputs")]):
        assert torch.equal(model(x), 2 * torch.ones(2))


def test_statistics_are_taken_before_a_later_layer_overwrites() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    x = torch.randn(64, 4)
    linear = model[0](x).detach()
    with watch(model, ["activations"]) as seen, torch.no_grad():
        model(x)
    rows = {row.fqn: row for row in seen.reports()[0].rows}
    assert_stats(rows["0"].stats, float64_stats(linear))
    assert_stats(rows["1"].stats, float64_stats(linear.relu()))
