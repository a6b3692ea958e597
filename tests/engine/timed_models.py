"""Models that take times that a person can add up, on a clock that only they move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli.engine import timing


class Clock:
    """A timer whose time stands still unless a model works."""

    time = 0.0

    def now(self) -> float:
        return self.time

    def wait(self) -> None:
        pass

    def between(self, began: float, ended: float) -> float:
        return ended - began


def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time models by a clock that only they move."""
    made = Clock()
    monkeypatch.setattr(timing, "timer_for", lambda device, clock: made)
    return made


class Working(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, spent: float) -> Tensor:
        ctx.clock, ctx.spent = clock, spent
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.clock.time += ctx.spent
        return grads[0], None, None


class Work(nn.Module):
    """Takes so many microseconds in forward, and so many in backward."""

    def __init__(self, clock: Clock, forward: float | Iterator[float], backward: float = 0.0) -> None:
        super().__init__()
        self.clock, self.spent, self.backward = clock, forward, backward
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        self.clock.time += next(self.spent) if isinstance(self.spent, Iterator) else self.spent
        return Working.apply(x * self.weight, self.clock, self.backward)  # type: ignore[no-any-return]


class Block(Work):
    """Works itself before and after its parts, of which it calls the first twice."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, 7, 70)
        self.one, self.other = Work(clock, 1, 10), Work(clock, 2, 20)

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(self.one(self.one(x)))
        return self.other(x)  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self, clock: Clock, *, again: bool | None = None) -> None:
        super().__init__()
        self.block, self.head, self.norm = Block(clock), Work(clock, 100, 1000), nn.BatchNorm1d(2)
        self.clock, self.again = clock, again

    def forward(self, x: Tensor) -> Tensor:
        self.clock.time += 30
        y = self.block(x) if self.again is None else checkpoint(self.block, x, use_reentrant=self.again)
        return self.head(self.norm(y))  # type: ignore[no-any-return]


class Once(nn.Linear):
    """Runs once, and fails from then on: in the passes that are timed."""

    runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        if self.runs > 1:
            raise ValueError("only once")
        return super().forward(x)
