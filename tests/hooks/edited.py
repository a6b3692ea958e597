"""Operations of edits, and the gradients of a model under them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli import watch
from hookcli.hooks.edits.base import Edit

OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": lambda x: x * 0,
    "ones": lambda x: x * 0 + 1,
    "scale(2)": lambda x: 2 * x,
    "scale(factor=-0.5)": lambda x: x / -2,
    "clamp(-1,1)": lambda x: torch.where(x < -1, -1, torch.where(x > 1, 1, x)),
    "clamp( min = 0 )": lambda x: torch.where(x > 0, x, 0),
    "clamp(None, 0.1)": lambda x: torch.where(x > 0.1, 0.1, x),
    "square": lambda x: x**2,
    "math_of_tests:halved": lambda x: x / 2,
    "torch:neg": lambda x: -x,
}


OWN = """
number = 3

def halved(x):
    return x / 2

def plus(x, much, *, sign=1):
    return x + sign * much

def shaken(x, std, generator):
    return x + std * generator.initial_seed()
"""


# Each kind on a model that can be followed by hand: y = 3 * sum(relu(2x - 1)).


def grads_of(model: nn.Module, x: Tensor, edits: Sequence[str | Edit] = ()) -> dict[str, Tensor]:
    """The gradients of parameters and input under edits, whole, from a backward pass of one's own."""
    x = x.detach().clone().requires_grad_()
    with watch(model, edits=edits):
        model(x).sum().backward()
    assert x.grad is not None
    return {"x": x.grad, **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


class Keywords(nn.Module):
    """Called with a positional argument, a keyword argument and a list, and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Any:
        parts = [x * 2, x * 3]
        found = self.inner(x, mask=torch.ones_like(x), parts=parts, count=torch.tensor(3))
        return {**found, "sum of the list": parts[0] + parts[1]}


class Inner(nn.Module):
    def forward(self, x: Tensor, *, mask: Tensor, parts: list[Tensor], count: Tensor) -> dict[str, Tensor]:
        return {"a": x * mask * count, "b": parts[0] + parts[1]}


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.one, self.two, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def part(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(torch.tanh(self.one(x)))))

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.part, x, use_reentrant=self.reentrant) if self.reentrant is not None else self.part(x)
        return self.out(y)
