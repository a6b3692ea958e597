"""Trainings whose recorded steps are judged together, and what is said of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from observing import observed
from torch import Tensor, nn
from torch.nn import functional

from hookcli.table import Finding

Program = Callable[[], Any]


def found(program: Program, **plan: Any) -> dict[str, Finding]:
    """The findings of the last recorded training step, by check."""
    seen = observed(program, check=True, **plan)
    step = next(one for one in reversed(seen.recorded) if one.phase == "train" and one.forwards)
    return {finding.check: finding for report in step.reports for finding in report.findings}


def findings_of(program: Program, check: str, **plan: Any) -> dict[str, Finding]:
    """The findings of this check at the last recorded training step, by place."""
    seen = observed(program, check=True, **plan)
    step = next(one for one in reversed(seen.recorded) if one.phase == "train" and one.forwards)
    return {one.fqn: one for report in step.reports for one in report.findings if one.check == check}


def net(*, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3)).to(dtype)


def steps(model: nn.Module, number: int = 10) -> Iterator[Tensor]:
    """The loss of each step, which has gone backward."""
    dtype = next(model.parameters()).dtype
    for _ in range(number):
        model.zero_grad()
        loss = functional.cross_entropy(model(torch.randn(32, 8, dtype=dtype)).float(), torch.randint(3, (32,)))
        loss.backward()
        yield loss


def trained(model: nn.Module, optimizer: Any, number: int = 10, scheduler: Any = None) -> nn.Module:
    for _ in steps(model, number):
        optimizer.step()
        if scheduler:
            scheduler.step()
    return model


class Policy(nn.Module):
    """Scores of actions, of which those that are not allowed are -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x).relu())
        return torch.where(allowed, y, -math.inf)


def actions_that_are_not_allowed() -> nn.Module:
    model = Policy()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        x, allowed = torch.randn(32, 8), torch.rand(32, 5) > 0.4
        allowed[:, 0] = True
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=model(x, allowed)).sample()
        optimizer.zero_grad()
        (-torch.distributions.Categorical(logits=model(x, allowed)).log_prob(action).mean()).backward()
        optimizer.step()
    return model


class Scores(nn.Module):
    """Scores made by a function of a layer's output, the call's number, and whether it trains."""

    def __init__(self, function: Callable[[Tensor, int, bool], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(8, 5), function

    def forward(self, x: Tensor, number: int = 0) -> Tensor:
        return self.function(self.layer(x), number, self.training)


def hidden(y: Tensor) -> Tensor:
    return y.masked_fill(torch.arange(5) == 2, -math.inf)


def scored(model: nn.Module, number: int = 6) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(number):
        optimizer.zero_grad()
        model(torch.randn(32, 8)).softmax(-1).square().mean().backward()
        optimizer.step()
    return model
