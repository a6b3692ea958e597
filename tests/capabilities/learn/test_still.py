"""Weights that no step changes: the reason that is said, and trainings that are at their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.headline import faults
from hookcli.capabilities.learn.lines import LINES
from hookcli.checks.measurements import Measurements
from hookcli.table.losses import LossCourse

STEPS = 12
CLEARED = (
    f"every gradient was cleared before the optimizer's step, in each of {STEPS} recorded steps: nothing was trained"
)


def first_fault(program: Callable[[], Any]) -> str:
    seen = observed(program, every=1)
    losses = {step: loss for of in seen.every_loss.values() for step, loss in of.items() if loss is not None}
    lines = {kind.kind: [line for line in seen.of_parts if isinstance(line, kind)] for kind in LINES}
    measured = Measurements(losses=LossCourse.of(losses), every_loss=losses, lines=lines)
    return next(faults(measured), "")


def train(
    model: nn.Module,
    clears: Callable[[torch.optim.Optimizer, Tensor], object],
    kind: type[torch.optim.Optimizer] = torch.optim.SGD,
) -> nn.Module:
    optimizer = kind(model.parameters(), lr=0.05)  # type: ignore[call-arg]
    for _ in range(STEPS):
        x = torch.randn(16, 6)
        clears(optimizer, F.cross_entropy(model(x), (x[:, 0] > 0).long()))
        optimizer.step()
    return model


def net(bias: float = 0.0) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2), nn.ReLU())
    nn.init.constant_(model[2].bias, bias)  # type: ignore[arg-type]
    return model


def before(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()


def after(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    optimizer.zero_grad()


def to_zero(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    optimizer.zero_grad(set_to_none=False)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (lambda: train(net(1.0), after), CLEARED),
        swept(lambda: train(net(1.0), to_zero), CLEARED),
        swept(lambda: train(net(1.0), after, torch.optim.AdamW), CLEARED),
        (
            lambda: train(net(1.0), to_zero, torch.optim.AdamW),
            CLEARED.replace("nothing was trained", "only weight decay moved the weights"),
        ),
        (
            lambda: train(net(-50.0), before),
            f"the optimizer has changed no weight in {STEPS} recorded steps: every gradient is zero",
        ),
    ],
)
def test_the_reason_is_said(program: Callable[[], Any], said: str) -> None:
    assert first_fault(program) == said


class Rebinds(torch.optim.Optimizer):
    """Computes new values, and gives them to no parameter."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__(model.parameters(), {"lr": lr})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p = p - self.param_groups[0]["lr"] * p.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_the_reason_only_where_updates_are_that_small(dtype: torch.dtype) -> None:
    """By hand: bfloat16 numbers between 1 and 2 are 2**-7 apart, float32 numbers 2**-23."""

    def program() -> nn.Module:
        model = nn.Linear(6, 1, bias=False, dtype=dtype)
        nn.init.constant_(model.weight, 1.5)
        narrow = dtype == torch.bfloat16
        optimizer = torch.optim.SGD(model.parameters(), 1e-4) if narrow else Rebinds(model, 1e-4)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(4, 6, dtype=dtype)).mean().backward()
            optimizer.step()
        return model

    rounded = "its updates are lost as weights are rounded (learning rate 0.0001)"
    rebound = "Rebinds.step() leaves them as they are (learning rate 0.0001); it must change parameters in place"
    said = rounded if dtype == torch.bfloat16 else rebound
    assert first_fault(program) == f"the optimizer has changed no weight in {STEPS} recorded steps: {said}"


def lbfgs() -> nn.Module:
    """A quadratic, whose minimum LBFGS has found after a few steps: from then on it makes none."""
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)
    x = torch.randn(32, 4)
    y = x @ torch.ones(4, 1) + torch.randn(32, 1)
    for _ in range(STEPS):

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


def hinge() -> nn.Module:
    """A margin that is reached: the loss and its gradient are zero from then on."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    x = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    for _ in range(2 * STEPS):
        optimizer.zero_grad()
        (1 - model(x) * x[:, :1]).clamp(min=0).mean().backward()
        optimizer.step()
    return model


@pytest.mark.sweep
@pytest.mark.parametrize("program", [lbfgs, hinge, lambda: train(net(1.0), before)])
def test_what_is_at_its_end_or_moves_is_not_accused(program: Callable[[], Any]) -> None:
    assert first_fault(program) == ""
