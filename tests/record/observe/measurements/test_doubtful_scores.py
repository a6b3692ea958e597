"""Infinities of which no recorded step shows the origin: a warning, unless they do harm or are seen to be computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from observing import observed
from support import swept
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional

from hookcli.table import Finding

Loss = Callable[[Tensor], Tensor]
ADDED = torch.full((5,), -math.inf).where(torch.arange(5) == 2, torch.zeros(5))
COLUMNS = torch.arange(5) == 2


def spread(y: Tensor) -> Tensor:
    return y.softmax(-1).square().mean()


def hidden_action(y: Tensor) -> Tensor:
    """The loss is infinite, and its gradient is not."""
    return functional.cross_entropy(y, torch.full((len(y),), 2))


class Scores(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(8, 5), function
        self.register_buffer("mask", ADDED)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


def not_finite(
    function: Callable[[Tensor], Tensor], loss: Loss = spread, number: int = 1, compiled: bool = False, **plan: Any
) -> Finding | None:
    """What is said of the outputs after so many steps."""

    def program() -> nn.Module:
        model = Scores(function)
        called = torch.compile(model, backend="aot_eager") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(number):
            optimizer.zero_grad()
            loss(called(torch.randn(16, 8))).backward()
            optimizer.step()
        return model

    last = observed(program, check=True, **plan).recorded[-1]
    return next((one for report in last.reports for one in report.findings if one.check == "HK003"), None)


MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "added": lambda y: y + ADDED,
    "concatenated": lambda y: torch.cat((y[:, :4], torch.full((len(y), 1), -math.inf)), 1),
    "added as a logarithm": lambda y: y + (~COLUMNS).float().log(),
}


TYPICAL = ["added", "added as a logarithm", swept("concatenated")]


@pytest.mark.sweep
@pytest.mark.parametrize("name", TYPICAL)
@pytest.mark.parametrize(("number", "plan"), [(1, {}), (3, {"every": 100})])
def test_a_mask_in_the_only_recorded_step_is_a_doubt(name: str, number: int, plan: dict[str, Any]) -> None:
    finding = not_finite(MASKS[name], number=number, **plan)
    assert finding and finding.severity == "warning"
    assert finding.message.endswith("values of its output are infinite; whether that is meant could not be seen")
    assert finding.remedy and "record another step" in finding.remedy and "--ops" in finding.remedy


@pytest.mark.sweep
@pytest.mark.parametrize("name", TYPICAL)
@pytest.mark.parametrize(("number", "plan"), [(3, {}), (1, {"ops": "functions"})])
def test_another_step_or_operators_clear_up_the_doubt(name: str, number: int, plan: dict[str, Any]) -> None:
    assert not_finite(MASKS[name], number=number, **plan) is None


def test_a_mask_that_a_node_shows_is_no_doubt() -> None:
    assert not_finite(lambda y: y.masked_fill(COLUMNS, -math.inf)) is None


@pytest.mark.parametrize(
    ("function", "loss"),
    [
        (MASKS["added"], hidden_action),
        (MASKS["added"], lambda y: y.exp().sum().sqrt() * y.mean()),
        (lambda y: y.relu().log(), lambda y: y.mean()),
        (lambda y: y.relu().log(), lambda y: y.exp().mean()),
        (lambda y: y.relu().log() + 1e-8, lambda y: y.exp().mean()),
        (lambda y: torch.where(COLUMNS, (y * 0).sqrt(), y) + ADDED, spread),
    ],
)
def test_infinities_that_do_harm_or_are_computed_are_errors_in_one_step_too(
    function: Callable[[Tensor], Tensor], loss: Loss
) -> None:
    finding = not_finite(function, loss)
    assert finding and finding.severity == "error" and "could not be seen" not in finding.message


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    """Operators of loss functions are not watched in a process that has compiled something."""
    yield
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.sweep
@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("number", [1, swept(3)])
@pytest.mark.parametrize(
    ("function", "loss", "severity"),
    [
        (lambda y: y.masked_fill(COLUMNS, -math.inf), spread, "warning"),
        swept(lambda y: y + ADDED, spread, "warning"),
        (lambda y: y.masked_fill(COLUMNS, -math.inf), hidden_action, "error"),
        (lambda y: y.relu().log(), lambda y: y.mean(), "error"),
        swept(lambda y: y, spread, None),
    ],
)
def test_what_a_compiled_model_returns_is_judged_by_its_harm(
    function: Callable[[Tensor], Tensor], loss: Loss, severity: str | None, number: int
) -> None:
    finding = not_finite(function, loss, number, compiled=True)
    assert (finding and finding.severity) == severity
