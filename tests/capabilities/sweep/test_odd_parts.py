"""Experts and heads as few models have them: with biases, in a mapping, of a width that does not fit."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from capabilities.sweep.swept import by_rows, relative, swept
from torch import Tensor, nn

from hookcli.errors import UsageError


class Fused(nn.Module):
    """Weights and biases of two experts, and a matrix of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(2, 3, 3)), nn.Parameter(torch.randn(2, 3))
        self.other = nn.Parameter(torch.randn(1, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w + self.b[:, None]).sum(0) + self.other


def test_biases_of_experts_are_zeroed_but_not_rounded() -> None:
    model, x = nn.Sequential(OrderedDict(experts=Fused())).double(), torch.randn(4, 3).double()
    fused = model.experts
    for plan, keeps in (({}, 0), ({"quantize": "int4"}, 1)):
        for row in swept(model, x, of="experts", **plan).rows:
            twin = copy.deepcopy(fused)
            twin.w.data[row["expert"]] = by_rows(fused.w.data[row["expert"]], 7) * keeps
            twin.b.data[row["expert"]] *= keeps
            assert row["output_change"] == pytest.approx(relative(fused(x), twin(x)), rel=1e-6)


class Named(nn.Module):
    """Experts in a mapping, as Switch Transformers have them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleDict({name: nn.Linear(3, 3) for name in ("a", "b", "c")})

    def forward(self, x: Tensor) -> Tensor:
        return self.experts["a"](x) + self.experts["c"](x)  # type: ignore[no-any-return]


def test_a_depth_holds_for_weights_too() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)))
    assert [row.fqn for row in swept(model, torch.ones(1, 3), quantize="int4", depth=1.0).rows] == ["0"]


def test_experts_with_names() -> None:
    model, x = Named(), torch.ones(1, 3)
    report = swept(model, x, of="experts")
    assert [(item.fqn, item.reason) for item in report.skipped] == [("experts.b", "never called in train mode")]
    for row, other in zip(sorted(report.rows, key=lambda row: row.fqn), ("c", "a"), strict=True):
        alone = relative(model(x), model.experts[other](x))
        assert row["expert"] == "abc".index(row.fqn[-1]) and row["output_change"] == pytest.approx(alone, rel=1e-5)


def test_heads_that_do_not_fit_the_projection() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.proj = 3, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.proj(x)  # type: ignore[no-any-return]

    with pytest.raises(UsageError, match=r"its heads can't share the columns of 0\.proj evenly: 4"):
        swept(nn.Sequential(Attention()), torch.ones(1, 4), of="heads")
