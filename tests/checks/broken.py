"""Models that each have one fault, and those that nearly have it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from support import untouched
from torch import Tensor, nn

from hookcli import check


class Fn(nn.Module):
    """A layer between two functions, for models of one line."""

    def __init__(self, after: Callable[[Tensor], Any] = lambda y: y, before: Any = lambda x: x, width: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.after, self.before = after, before

    def forward(self, x: Tensor) -> Any:
        return self.after(self.layer(self.before(x)))


def tower(activation: nn.Module, depth: int, gain: float | None = None) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        linear = nn.Linear(16, 16, bias=gain is None)
        if gain is not None:
            nn.init.orthogonal_(linear.weight, gain)
        layers += [linear, activation]
    return nn.Sequential(*layers, nn.Linear(16, 3))


def wide() -> Tensor:
    return torch.randn(16, 16)


def biased(activation: nn.Module, dead: int, of: int = 8, bias: float = -100.0) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, of), activation, nn.Linear(of, 2))
    with torch.no_grad():
        model[0].bias[:dead] = bias
    return model


class Parts(nn.Module):
    """What is built, and what is used."""

    def __init__(self, use_extra: bool = False, call_drop: bool = False, functional: bool = False) -> None:
        super().__init__()
        self.layer, self.extra, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.1)
        self.use_extra, self.call_drop, self.functional = use_extra, call_drop, functional

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.use_extra:
            y = self.extra(y)
        if self.functional:
            y = nn.functional.linear(y, self.extra.weight, self.extra.bias)
        return self.drop(y) if self.call_drop else y


class Noisy(nn.Module):
    """Random by Python's generator, or by PyTorch's."""

    def __init__(self, torchs: bool) -> None:
        super().__init__()
        self.first, self.layer, self.torchs = nn.Linear(4, 4), nn.Linear(4, 4), torchs

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.first(x) * (torch.rand(()) if self.torchs else random.random()))


class Dropped(nn.Sequential):
    """A dropout that is never switched off, or one that is, in a part of the model."""

    def __init__(self, always: bool) -> None:
        super().__init__(nn.Linear(4, 4), Fn(lambda y: nn.functional.dropout(y, training=always or self.training)))


class Count(nn.Module):
    """Multiplies by the number of its calls, in eval mode or when it is trained."""

    def __init__(self, mode: str, buffer: bool) -> None:
        super().__init__()
        self.mode, self.number = mode, 0
        if buffer:
            del self.number
            self.register_buffer("number", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training == (self.mode == "train"):
            self.number += 1
        return x * self.number if not self.training and self.mode == "eval" else x


class Counts(nn.Sequential):
    def __init__(self, mode: str, buffer: bool = True) -> None:
        super().__init__(nn.Linear(4, 4), Count(mode, buffer), nn.Linear(4, 2, bias=False))


@dataclass
class Case:
    id: str
    caught: Callable[[], nn.Module]
    missed: Callable[[], nn.Module]
    fqn: str
    value: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    near: dict[str, Any] | None = None
    inputs: Callable[[], Any] = lambda: torch.randn(16, 4)
    near_inputs: Callable[[], Any] | None = None


def frozen(number: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[number].requires_grad_(False)
    return model


def found(case: Case, near: bool) -> Any:
    torch.manual_seed(1)
    model = (case.missed if near else case.caught)()
    inputs = (case.near_inputs if near and case.near_inputs else case.inputs)()
    settings = case.near if near and case.near is not None else case.settings
    state = random.getstate()
    with untouched(model):
        report = check(model, inputs, select=case.id, **settings)
        random.setstate(state)  # Python's generator is the model's affair
        return report
