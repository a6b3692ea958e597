"""HK006 and HK007 on layers that eval mode calls, and training mode does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import swept, untouched
from torch import Tensor, nn

from hookcli import check


class Net(nn.Module):
    """Two layers and a third, which `last` may call on what they return."""

    def __init__(self, extra: nn.Module, last: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.extra, self.last = nn.Linear(6, 8), nn.Linear(8, 3), extra, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self, self.b(self.a(x).tanh()))


def in_eval(m: Any, y: Tensor) -> Tensor:
    return y if m.training else m.extra(y)


def never(m: Any, y: Tensor) -> Tensor:
    return y


ONLY = "is called in eval mode only: it is never trained"
CASES: dict[str, tuple[Callable[[], nn.Module], Any, list[tuple[str, str]]]] = {
    "a layer": (lambda: nn.Linear(3, 3), in_eval, [("HK006", f"Linear with 12 parameters {ONLY}")]),
    "a block": (
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
        in_eval,
        [("HK006", f"Sequential with 12 parameters {ONLY}")],
    ),
    "a layer that nothing calls": (
        lambda: nn.Linear(3, 3),
        never,
        [("HK006", "Linear with 12 parameters was never called")],
    ),
    "a softmax": (lambda: nn.Softmax(-1), in_eval, []),
    "a softmax that nothing calls": (lambda: nn.Softmax(-1), never, [("HK007", "Softmax was never called")]),
    "a frozen layer": (lambda: nn.Linear(3, 3).requires_grad_(False), in_eval, []),
}


@pytest.mark.parametrize("case", CASES)
def test_layers_of_eval_mode_are_told_from_those_that_nothing_calls(case: str) -> None:
    make, last, expected = CASES[case]
    model, x = Net(make(), last), torch.randn(8, 6)
    with untouched(model):
        report = check(model, x, select=["HK006", "HK007"])
    assert [(one.check, one.message) for one in report.findings] == expected


def test_a_model_that_is_checked_in_eval_mode_has_no_other_mode() -> None:
    model = Net(nn.Linear(3, 3), lambda m, y: m.extra(y) if m.training else y).eval()
    [finding] = check(model, torch.randn(8, 6), select="HK006").findings
    assert finding.message == "Linear with 12 parameters was never called"


class LayerDrop(nn.Module):
    """Layers of which training leaves each out with a probability, and one that is never called."""

    def __init__(self, draw: Callable[[], float], share: float, unused: bool = False) -> None:
        super().__init__()
        self.layers, self.out = nn.ModuleList(nn.Linear(6, 6) for _ in range(6)), nn.Linear(6, 2)
        self.draw, self.share = draw, share
        if unused:
            self.unused = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not self.training or self.draw() >= self.share:
                x = x + layer(x).relu()
        y: Tensor = self.out(x)
        return y


@pytest.mark.parametrize("draw", [swept(random.random), lambda: torch.rand(()).item()])
@pytest.mark.parametrize("share", [0.6, swept(0.1)])
@pytest.mark.parametrize("unused", [False, True])
def test_layers_that_chance_leaves_out_are_no_fault(draw: Callable[[], float], share: float, unused: bool) -> None:
    torch.manual_seed(0)
    random.seed(0)
    model, x = LayerDrop(draw, share, unused), torch.randn(8, 6)
    with untouched(model):
        report = check(model, x)
    found = [(one.check, one.fqn) for one in report.findings if one.check in ("HK006", "HK008")]
    assert found == [("HK006", "unused"), ("HK008", "unused")] * unused
