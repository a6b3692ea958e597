"""What tells whether a tensor has changed: its version, and a glimpse of its values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hookcli.tensors.weak import Unchanged, glimpse


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, math.nan]),  # which equals nothing, not even itself
        torch.tensor([1.0, math.inf]),
        torch.tensor([1.0, complex(0, math.inf)]),
        torch.ones(2, device="meta"),
        torch.ones(70_000).expand(2, -1),
    ],
)
def test_where_a_glimpse_would_tell_nothing_there_is_none(tensor: Tensor) -> None:
    assert glimpse(tensor) is None


def test_a_glimpse_is_the_sum_of_a_small_tensor_and_251_elements_of_a_large_one() -> None:
    assert glimpse(torch.tensor([1.0, 2.5])) == 3.5 and glimpse(torch.tensor([1j, 2.0])) == 2 + 1j
    assert glimpse(torch.arange(1 << 16)) == ((1 << 16) - 1) * (1 << 15)
    assert glimpse(torch.arange(251 * 300)) == list(range(0, 251 * 300, 300))


def test_a_result_is_made_anew_after_a_write_past_the_version() -> None:
    made: list[float] = []

    def make(tensor: Tensor) -> int:
        made.append(tensor.sum().item())
        return len(made)

    seen, tensor = Unchanged[int](), torch.ones(4)
    assert [seen.get(tensor, make), seen.get(tensor, make)] == [1, 1]
    tensor.data[0] = 5.0
    assert [seen.get(tensor, make), seen.get(tensor, make)] == [2, 2]
    tensor.add_(0)  # a new version
    assert seen.get(tensor, make) == 3 and made == [4, 8, 8] and len(seen._seen._entries) == 1
