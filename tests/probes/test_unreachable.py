"""How far a look into objects goes for tensors that no walk can reach."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hookcli import capture

SEEN = ["holds tensors that can't be seen (SimpleNamespace)"]


class Returns(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return x, self.value


def noted(value: Any) -> list[str]:
    [report] = capture(Returns(value), torch.ones(1), ["activations"])
    return [item.reason for item in report.skipped]


def within(levels: int) -> Any:
    """A tensor in an attribute of an attribute ..."""
    value: Any = torch.ones(1)
    for _ in range(levels):
        value = SimpleNamespace(value=value)
    return value


def zeros(number: int) -> dict[str, int]:
    return dict.fromkeys(map(str, range(number)), 0)


@pytest.mark.parametrize(
    ("near", "far"),
    [
        (within(4), within(5)),
        (SimpleNamespace(**zeros(127), last=torch.ones(1)), SimpleNamespace(**zeros(128), last=torch.ones(1))),
        (SimpleNamespace(items=[0] * 127 + [torch.ones(1)]), SimpleNamespace(items=[0] * 128 + [torch.ones(1)])),
        (
            SimpleNamespace(items={**zeros(127), "a": torch.ones(1)}),
            SimpleNamespace(items={**zeros(128), "a": torch.ones(1)}),
        ),
    ],
    ids=["levels", "attributes", "lists", "dicts"],
)
def test_a_look_into_objects_is_short(near: Any, far: Any) -> None:
    assert noted(near) == SEEN and noted(far) == []


@pytest.mark.parametrize("held", [nn.Linear(1, 1), lambda: torch.ones(1), SimpleNamespace, torch])
def test_what_modules_functions_and_types_hold_is_passed_on_by_nobody(held: Any) -> None:
    assert noted(SimpleNamespace(held=held)) == []
