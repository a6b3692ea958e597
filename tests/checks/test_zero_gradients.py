"""HK009 names the factor that is zero, and does not say that zero flows back where another gradient does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import swept, untouched
from torch import Tensor, nn
from torch.nn.utils import prune

from hookcli import check
from hookcli.checks.measurements import Measurements
from hookcli.checks.zero_gradients import ZeroGradient
from hookcli.table import Report, Row, TensorStats
from hookcli.table.columns.layouts import GRADS


class Product(nn.Module):
    """Two parameters that meet in a product, each of which may be zero."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.full((4, 16), a)), nn.Parameter(torch.full((16, 4), b))

    def forward(self, x: Tensor) -> Tensor:
        return x + x @ self.a.T @ self.b.T


class Adapter(nn.Module):
    """The same as two layers."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a, self.b = nn.ModuleDict({"x": nn.Linear(16, 4, bias=False)}), nn.Linear(4, 16, bias=False)
        nn.init.constant_(self.a["x"].weight, a)
        nn.init.constant_(self.b.weight, b)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(self.a["x"](x))


class Gated(nn.Module):
    """A scale, and a shift of it, before which nothing is left."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.scale, self.gate = nn.Parameter(torch.full((16,), a)), nn.Parameter(torch.full((), b))

    def forward(self, x: Tensor) -> Tensor:
        return x + x * self.scale * self.gate


NAMES: dict[type[nn.Module], str] = {
    Product: "a and b are both zero",
    Adapter: "a.x.weight and b.weight are both zero",
    Gated: "scale and gate are both zero",
}


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("zeros", [2, 1, 0])
def test_two_factors_that_are_zero(kind: Callable[..., nn.Module], zeros: int) -> None:
    model = nn.Sequential(kind(0.1 if zeros < 2 else 0.0, 0.0 if zeros else 0.1), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(16, 16)
    with untouched(model):
        found = check(model, x, loss="sum", select="HK009").findings
    if zeros == 0:
        assert not found
        return
    (one,) = found
    if zeros == 2:
        assert f"{NAMES[kind]}, so each gets a zero gradient" in one.message and "flows back" not in one.message  # type: ignore[index]
    else:
        assert "both zero" not in one.message


def test_zero_flows_back_from_a_last_layer_of_zeros() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))
    nn.init.zeros_(model[1].weight)
    (one,) = check(model, torch.randn(16, 16), select="HK009").findings
    assert one.fqn == "0" and one.message.endswith("is all zero: 1.weight is zero, so that zero flows back")
    assert one.remedy.startswith("nothing to do if it begins at zero on purpose")


class LowRank(nn.Module):
    """A frozen layer beside an adapter, of which `zero` begins at zero."""

    def __init__(self, zero: str = "B") -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.A, self.B = nn.ModuleDict({"x": nn.Linear(16, 4, bias=False)}), nn.Linear(4, 16, bias=False)
        nn.init.zeros_(self.B.weight if zero == "B" else self.A["x"].weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.B(self.A["x"](x))


def test_the_factor_of_an_adapter_is_named() -> None:
    model = nn.Sequential(LowRank(), nn.Tanh(), LowRank(), nn.Tanh(), LowRank())
    (one,) = check(model, torch.randn(16, 16), select="HK009").findings
    more = "and of 2 other parameters: 4.B.weight is zero, so that zero flows back"
    assert (one.fqn, one.message) == ("4.A.x", f"the gradient of weight is all zero, {more}")


def test_zeros_of_another_cause_are_not_put_on_a_bias_that_begins_at_zero() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    nn.init.constant_(model[0].bias, -100.0)
    nn.init.zeros_(model[2].bias)
    found = check(model, torch.randn(16, 16), select="HK009").findings
    assert found and not any("is zero, so that" in one.message for one in found)


def stats(value: float) -> TensorStats:
    return TensorStats(4, value, 0.0, value, value, 2 * value, zeros=0 if value else 4)


@pytest.mark.parametrize(("arrived", "says"), [(1.0, "clipping by an infinite norm"), (0.0, "zero flows back")])
def test_gradients_that_were_zeroed_after_backward(arrived: float, says: str) -> None:
    def report(*rows: Row) -> Report:
        return Report("grads", "m", GRADS, rows)

    place: dict[str, Any] = {"type": "Linear", "path": "", "shape": [4], "dtype": "float32"}
    grads = report(
        *(Row({"fqn": f"l.{name}", "kind": "parameter", **place}, stats(0.0)) for name in ("weight", "bias"))
    )
    outputs = report(Row({"fqn": "l", "kind": "output", **place}, stats(arrived)))
    empty = Report("activations", "m", GRADS, ())
    measured = Measurements(activations=empty, inventory=empty, grads=grads, output_grads=outputs)
    (one,) = ZeroGradient().judge(measured)  # type: ignore[arg-type]
    assert says in one.message and ("its output is 1.000" in one.message) == bool(arrived)


def hooked(layer: nn.Linear) -> None:
    layer.weight.register_hook(torch.zeros_like)


def pruned(layer: nn.Linear) -> None:
    prune.custom_from_mask(layer, "weight", torch.zeros_like(layer.weight))


@pytest.mark.parametrize("change", [hooked, swept(pruned)])
@pytest.mark.parametrize("place", [0, 2])
def test_a_weight_whose_gradient_alone_is_zeroed_has_no_input_of_zeros(
    change: Callable[[nn.Linear], None], place: int
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    change(model[place])
    (one,) = check(model, torch.randn(16, 8), select="HK009").findings
    assert one.fqn == f"{place}" and "or a mask or hook makes it so" in one.message


def test_an_input_of_zeros_is_said() -> None:
    (one,) = check(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.zeros(16, 8), select="HK009").findings
    assert one.message == "the gradient of weight is all zero (the layer's input is zero)"
