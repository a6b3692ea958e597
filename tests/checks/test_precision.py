"""HK017 finds values that float16 would lose, and no gradients that are only rounding errors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hookcli import check


class KeyBias(nn.Module):
    """Attention, whose softmax cancels the bias of the keys: the gradient of that is rounding."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.query, self.key, self.scale = nn.Linear(8, 8), nn.Linear(8, 8), scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * (self.query(x) @ self.key(x).mT).softmax(-1) @ x


def test_a_gradient_that_is_zero_but_for_rounding_is_no_underflow() -> None:
    torch.manual_seed(0)
    model, x = KeyBias(1e-7), torch.randn(4, 6, 8)
    model(x).square().sum().backward()
    noise, weight = (p.grad.square().mean().sqrt().item() for p in (model.key.bias, model.key.weight))
    assert 0 < noise < 2.0**-40 < weight
    assert check(model, x, select="HK017").findings == []
    assert [f.fqn for f in check(KeyBias(1e-15), x, select="HK017").findings] != []


class Scaled(nn.Module):
    """Blocks that add a branch, which is scaled down by so much, to what they were given."""

    def __init__(self, scale: float, adds: bool) -> None:
        super().__init__()
        self.branch, self.out, self.scale, self.adds = nn.Linear(8, 8), nn.Identity(), scale, adds

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(self.scale * self.branch(x))
        return x + y if self.adds else y


def test_an_output_below_float16_is_found_unless_it_is_a_branch_of_a_block() -> None:
    x = torch.randn(4, 8)
    blocks = [nn.Sequential(*(Scaled(scale, adds) for _ in range(8))) for scale, adds in ((1e-9, True), (1.0, False))]
    for model in blocks:
        assert check(model, x, select="HK017").findings == []
    (found,) = check(
        nn.Sequential(nn.Linear(8, 8), Scaled(1e-9, False), nn.LayerNorm(8, eps=0.0)), x, select="HK017"
    ).findings
    assert found.fqn == "1.out" and found.value is not None and 1e-11 < found.value < 2.0**-24 == found.threshold
