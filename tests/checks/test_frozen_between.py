"""HK032, of a layer whose own parameter is frozen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hookcli import check


class Biased(nn.Module):
    """A layer with a frozen table of its own, and a projection within it."""

    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8), requires_grad=False)
        self.projection = nn.Linear(8, 8).requires_grad_(trained)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.projection(x + self.table)
        return projected


@pytest.mark.parametrize(("trained", "found"), [(True, []), (False, ["1"])])
def test_a_layer_whose_parts_are_trained_is_not_frozen(trained: bool, found: list[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Biased(trained=trained), nn.Linear(8, 8), nn.Linear(8, 8))
    report = check(model, torch.randn(16, 8))
    assert [one.fqn for one in report.findings if one.check == "HK032"][:1] == found
