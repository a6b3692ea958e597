"""Models put together from what has misled hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli import registry
from hookcli.probes.base import Probe
from hookcli.probes.grads import GradsProbe

WIDTH = 8


class HandsOn(nn.Module):
    """Three gradients meet at one tensor, two of them through a module that returns what it received."""

    def __init__(self, hand: nn.Module) -> None:
        super().__init__()
        self.l, self.hand = nn.Linear(WIDTH, WIDTH), hand
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.l(x)
        z = self.hand(y)
        return self.b(z) + self.a(y) * 2 + self.c(z) * 3


class Carries(nn.Module):
    """Uses what it received, and hands it on: returned beside its output, in a list and in an attribute."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.l = how, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: list[Tensor]) -> Any:
        if self.how == "list":
            cache.append(x)
        self.kept = x if self.how == "attribute" else None
        return (self.l(x), x) if self.how == "output" else self.l(x)


class Carried(nn.Module):
    """Uses of a tensor before, inside and after a module that hands it on."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.l, self.carry = nn.Linear(WIDTH, WIDTH), Carries(how)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        cache: list[Tensor] = []
        y = self.l(x)
        before = self.a(y)
        out = self.carry(y, cache)
        out, same = out if self.carry.how == "output" else (out, cache[0] if cache else self.carry.kept)
        self.carry.kept = None
        return before + out * 2 + self.b(same) * 3


class Flattened(nn.Module):
    """Views through modules, and an in-place change of the last one."""

    def __init__(self, change: bool) -> None:
        super().__init__()
        self.change = change
        self.l, self.flat, self.back = nn.Linear(WIDTH, WIDTH), nn.Flatten(0), nn.Unflatten(0, (-1, 3, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.back(self.flat(self.l(x)))
        return x + (y.mul_(2) if self.change else y)


class Half(nn.Module):
    """An in-place activation on a view of what is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.act = nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.l(x)
        z = self.act(y[..., : WIDTH // 2])
        return y + torch.cat([z, z], -1)


class Gated(nn.Module):
    """Parts of a tensor, as views, and modules that get them."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.act, self.keep = nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.l(x).chunk(2, -1)
        return self.act(a) * self.keep(b) + b


class Uses(nn.Module):
    """Calls `use` with itself, which has the parts, and its input."""

    def __init__(self, use: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.use = use
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


def attention(keep: nn.Module) -> nn.Module:
    def use(its: Any, x: Tensor) -> Tensor:
        y: Tensor = its.attend(x, x, x, need_weights=False)[0]
        return y + its.attend(its.keep(x), x, x)[0]

    return Uses(use, attend=nn.MultiheadAttention(WIDTH, 2, batch_first=True), keep=keep)


def residual() -> nn.Module:
    body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.0))
    return Uses(lambda its, x: its.act(its.body(x).add_(x)), body=body, act=nn.ReLU(inplace=True))


def twice() -> nn.Module:
    mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Identity())
    return Uses(lambda its, x: its.mix(x) + its.mix(its.mix(x)) * x, mix=mix)


def normed() -> nn.Module:
    return Uses(lambda its, x: its.drop(its.norm(x)) + x, norm=nn.BatchNorm1d(3), drop=nn.Dropout(0.5))


def again(reentrant: bool) -> nn.Module:
    body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Identity())
    return Uses(lambda its, x: x + checkpoint(its.body, x, use_reentrant=reentrant), body=body)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y, last = self.gru(x)
        h, c = self.cell(last[0])
        return y + (h * c)[:, None]


class Stale(nn.Module):
    """A view of what is changed in place before the view is used: PyTorch makes its node when that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.part = nn.Linear(WIDTH, WIDTH), Part()
        self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.l(x)
        half = self.part(y)
        z = self.a(y) + self.b(y) * 2
        return z + torch.cat([half, half], -1) * 3 + self.c(y)


class Part(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        half = y[..., : WIDTH // 2]
        y.mul_(1.1)
        return half


class Penalized(nn.Module):
    """Takes a gradient in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            return self.l(x)
        y = torch.tanh(self.l(x))
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + slope * x


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "identity": lambda: HandsOn(nn.Identity()),
    "dropout 0": lambda: HandsOn(nn.Dropout(0.0)),
    "empty": lambda: HandsOn(nn.Sequential()),
    "carried in the output": lambda: Carried("output"),
    "carried in a list": lambda: Carried("list"),
    "carried in an attribute": lambda: Carried("attribute"),
    "contiguous": lambda: HandsOn(nn.Flatten(2)),
    "views": lambda: Flattened(False),
    "a view changed": lambda: Flattened(True),
    "half": Half,
    "gated": Gated,
    "residual": residual,
    "attention": lambda: attention(nn.Dropout(0.0).eval()),
    "attention of an identity": lambda: attention(nn.Identity()),
    "encoder": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True),
    "twice": twice,
    "checkpoint": lambda: again(False),
    "checkpoint, reentrant": lambda: again(True),
    "recurrent": Recurrent,
    "normed": normed,
    "stale": Stale,
    "penalized": Penalized,
}


class Model(nn.Sequential):
    """The blocks, one of which comes twice if it can."""

    def __init__(self, names: list[str], shared: bool) -> None:
        blocks = [BLOCKS[name]() for name in names]
        super().__init__(nn.Linear(WIDTH, WIDTH), *blocks, *(blocks[:1] if shared else []))


PROBES: dict[str, Callable[[], Probe]] = {
    **{name: registry.load("probes", name) for name in ("shapes", "inputs", "activations", "graph", "trace")},
    "grads of parameters": partial(GradsProbe, "parameters"),
    "grads of outputs": partial(GradsProbe, "outputs"),
    "grads of inputs": partial(GradsProbe, "inputs"),
}

models = st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=4)


def examples(number: int) -> Any:
    """So many, and twenty times as many in sweeps."""
    return settings(
        max_examples=number * settings.default.max_examples // 50,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


def make(names: list[str], shared: bool, seed: int, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(seed)
    return Model(names, shared).to(dtype), torch.randn(2, 3, WIDTH, dtype=dtype)
