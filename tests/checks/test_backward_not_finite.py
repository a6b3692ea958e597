"""HK004 with operators: the one whose backward makes the first gradient that is not finite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import untouched
from torch import Tensor, nn

from hookcli import check


class Net(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(4, 4), between, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


def root_or_norm(h: Tensor) -> Tensor:
    return torch.where(h > 0, h.sqrt(), torch.zeros_like(h)) / (h.norm(dim=1, keepdim=True) + 1)


CASES = {
    "root of zero": (lambda h: (h * 0).sqrt(), ":sqrt_1", "that its backward gives :mul_1"),
    "power of zero": (lambda h: (h * 0).pow(0.5).exp(), ":pow_1", "that its backward gives :mul_1"),
    "before others": (lambda h: (h * 0).sqrt().tanh() + 1, ":sqrt_1", "that its backward gives :mul_1"),
    "of two": (root_or_norm, "first", "of its output are NaN, made by the backward of :norm_1 or :sqrt_1"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_backward_that_makes_them_is_named(case: str) -> None:
    between, fqn, said = CASES[case]
    model = Net(between)
    x = torch.randn(3, 4)
    with untouched(model):
        (finding,) = check(model, x, ops="functions", select="HK004").findings
    assert finding.fqn == fqn and said in finding.message
    assert finding.message.endswith("and in 2 parameters after it")


def test_without_operators_the_parameter_is_named() -> None:
    (finding,) = check(Net(lambda h: (h * 0).sqrt()), torch.randn(3, 4), select="HK004").findings
    assert finding.fqn == "first.bias"
