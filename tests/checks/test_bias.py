"""HK035, a bias that a normalization removes: families of models that it must catch, and near misses."""

from __future__ import annotations

import pytest
import torch
from checks.wired import findings
from support import each_once
from torch import Tensor, nn
from torch.func import functional_call


class Residual(nn.Module):
    """The output of the layer with a bias is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return self.norm(y) + y


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.out = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.norm(self.linear(x.flatten(1, 2)).transpose(1, 2))[..., :8])
        return y


def conv(*after: nn.Module, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3, bias=bias), *after, nn.ReLU(), nn.Conv2d(6, 2, 1))


REMOVED: dict[str, nn.Module] = {
    "batch norm": conv(nn.BatchNorm2d(6)),
    "without statistics, in eval mode": conv(nn.BatchNorm2d(6, track_running_stats=False).eval()),
    "instance norm": conv(nn.InstanceNorm2d(6)),
    "a group per channel": conv(nn.GroupNorm(6, 6)),
    "transposed": Transposed(),
}
KEPT: dict[str, nn.Module] = {
    "no bias": conv(nn.BatchNorm2d(6), bias=False),
    "layer norm": conv(nn.LayerNorm([6, 6, 6])),
    "groups of two": conv(nn.GroupNorm(3, 6)),
    "in eval mode": conv(nn.BatchNorm2d(6).eval()),
    "a ReLU between": conv(nn.ReLU(inplace=True), nn.BatchNorm2d(6)),
    "used beside": Residual(),
}


def bias_gradient(model: nn.Module) -> float:
    """In float64, of the first bias against the weight's."""
    torch.manual_seed(0)
    model, x = model.double(), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    torch.manual_seed(1)
    y = model(x)
    owner = next(m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
    assert owner.bias is not None
    grads = torch.autograd.grad((y * torch.randn_like(y)).sum(), [owner.bias, owner.weight])
    model.float()
    return float(grads[0].norm() / grads[1].norm())


def alternating(y: Tensor) -> Tensor:
    """Differs from sample to sample and from channel to channel."""
    return (y * torch.linspace(-1, 2, y.numel()).cos().reshape(y.shape)).sum()


def rms(x: Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt())


def remains(model: nn.Module, x: Tensor) -> float:
    """What rounding leaves of the first bias's gradient, times the input as far as the bias hides it, by the weight's.

    HK035 knows the layer's output alone: an input that adds little to the bias looks as large as the bias makes it.
    """
    layer = next(m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
    calls: list[tuple[tuple[Tensor, ...], Tensor]] = []
    assert layer.bias is not None
    with layer.register_forward_hook(lambda _layer, args, y: calls.append((args, y))):
        bias, weight = torch.autograd.grad(alternating(model(x)), [layer.bias, layer.weight])
    [(args, y)] = calls
    without = functional_call(layer, {"bias": torch.zeros_like(layer.bias)}, args)
    return rms(bias) * rms(x) * rms(y) / rms(without) / rms(weight)


@pytest.mark.parametrize(("name", "scale"), each_once(REMOVED, [1e-5, 1e-3, 1.0, 1e5]))
def test_a_bias_without_effect(name: str, scale: float) -> None:
    torch.manual_seed(1)
    model, x = REMOVED[name], scale * torch.randn(4, 3, 8, 8)
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.reset_parameters()
    assert bias_gradient(model) < 1e-12
    first, norm = ("linear", "norm (BatchNorm1d)") if name == "transposed" else ("0", f"1 ({type(model[1]).__name__})")
    message = f"the bias of this {type(model.get_submodule(first)).__name__} is removed by {norm}"
    visible = remains(model, x) > torch.finfo(torch.float32).eps ** 0.5
    assert visible == (scale == 1e-5)
    assert findings(model, x, loss=alternating) == ([] if visible else [("HK035", first, message, 6)])


@pytest.mark.parametrize(("name", "scale"), each_once(KEPT, [1e-3, 1.0, 1e5]))
def test_a_bias_that_stays(name: str, scale: float) -> None:
    model = KEPT[name]
    assert name == "no bias" or bias_gradient(model) > 1e-6
    assert findings(model, scale * torch.randn(4, 3, 8, 8)) == []
