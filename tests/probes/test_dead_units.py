"""Dead and saturated channels at the thresholds that the docs state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hookcli import check


def found(activation: nn.Module, x: Tensor) -> dict[str, float | None]:
    """The share of dead (HK010) and saturated (HK011) channels, where a check found some."""
    return {f.check: f.value for f in check(nn.Sequential(activation), x, select=["HK010", "HK011"]).findings}


@pytest.mark.parametrize(
    ("activation", "bound", "inside"),
    [
        (nn.Hardtanh(-5.0, 5.0), 4.91, 4.89),  # 1 % of a range of 10
        (nn.Hardtanh(-5.0, 5.0), -4.91, -4.89),
        (nn.Hardtanh(10.0, 20.0), 10.09, 10.11),
        (nn.ReLU6(), 5.95, 5.93),  # 1 % of 6
        (nn.Hardsigmoid(), 3 - 0.05, 3 - 0.07),  # x / 6 + 1 / 2
        (nn.Hardsigmoid(), -3 + 0.05, -3 + 0.07),
        (nn.Softsign(), 50.0, 48.0),  # x / (1 + x) = 0.98, for a range of 2
        (nn.Tanh(), -2.3, -2.29),
        (nn.Sigmoid(), 4.6, 4.59),
    ],
    ids=repr,
)
def test_a_channel_is_saturated_within_one_percent_of_the_range(
    activation: nn.Module, bound: float, inside: float
) -> None:
    model = nn.Sequential(activation, nn.Softplus())  # a sigmoid that the model returns is not judged
    assert found(model, torch.full((8, 1), bound)) == {"HK011": 1.0}
    assert found(model, torch.full((8, 1), inside)) == {}


def test_a_relu6_is_saturated_where_all_values_are_at_its_upper_side() -> None:
    x = torch.full((8, 4), 7.0)
    x[0, 1:] = 3.0
    assert found(nn.ReLU6(), torch.full((8, 4), 7.0)) == {"HK011": 1.0}
    assert found(nn.ReLU6(), x) == {}
    x[0, 1:3] = 7.0
    assert found(nn.ReLU6(), x) == {"HK011": 0.75}
    assert found(nn.ReLU6(), -x) == {"HK010": 1.0}


def test_a_channel_that_is_at_both_bounds_is_saturated() -> None:
    x = torch.full((8, 4), 7.0)
    x[::2] = -7.0
    assert found(nn.Hardtanh(), x) == {"HK011": 1.0}


@pytest.mark.sweep
def test_eight_values_and_three_quarters_of_the_channels_are_needed() -> None:
    x = torch.ones(8, 4)
    x[:, :3] = -1
    assert found(nn.ReLU(), x) == {"HK010": 0.75}
    assert found(nn.ReLU(), x[:7]) == {}
    assert found(nn.ReLU(), torch.cat([x, x.abs()[:, :1]], 1)) == {}
    x[0, 0] = 1e-30
    assert found(nn.ReLU(), x) == {}
