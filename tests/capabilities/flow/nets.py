"""Models whose flow is known by hand, with the edges that it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Pair:
    first: Tensor
    rest: dict[str, Tensor]


class Net(nn.Module):
    """A model that runs `body(self, x)`, with two layers."""

    def __init__(self, body: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.register_buffer("cache", torch.zeros(3, 4))
        self.scale = nn.Parameter(torch.ones(4))
        self.body, self.holds = body, Holds()

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)


class Holder:
    """An object that no walk looks into."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Holds(nn.Module):
    """A module that returns such an object."""

    def forward(self, x: Tensor) -> Holder:
        return Holder(x * 2)


def _skip(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.a(x)
    y += x
    return net.relu(y)


def _views(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.a(x)
    first = y[:, :2]
    first.add_(1)
    return net.b(y)


def _earlier_view(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.a(x)
    flat = y.view(-1)
    y.relu_()
    return flat * 2


def _items(net: Any, x: Tensor) -> Tensor:
    out = torch.empty(3, 4)
    out[0] = net.a(x)[0]
    out[1:] = x[1:]
    return out


def _buffer(net: Any, x: Tensor) -> Tensor:
    net.cache.copy_(net.a(x))
    return net.b(net.cache)


def _nested(net: Any, x: Tensor) -> Pair:
    y = net.a(x)
    return Pair(y, {"z": net.b(Holder(y).x)})


def _out(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.a(x)
    torch.add(x, 1, out=y)
    return y


CASES: dict[str, tuple[Callable[[Any, Tensor], Any], list[str]]] = {
    "a skip connection in place": (_skip, ["a<input", "add_<a,input", "relu<add_", "output<relu"]),
    "a module called twice": (lambda n, x: n.a(n.a(x)), ["a<input", "a<a", "output<a"]),
    "an argument given twice": (lambda n, x: n.a(x) * x * x, ["a<input", "mul<a,input", "mul<mul,input", "output<mul"]),
    "one tensor twice": (lambda n, x: torch.cat([x, x]), ["cat<input,input", "output<cat"]),
    "chunks": (
        lambda n, x: torch.cat(n.a(x).chunk(2, 1)[::-1], 1),
        ["a<input", "chunk<a", "cat<chunk,chunk", "output<cat"],
    ),
    "unbind": (lambda n, x: sum(x.unbind(0)), ["unbind<input", "add<unbind", "add<add,unbind", "add<add,unbind"]),
    "a write through a view": (
        _views,
        ["a<input", "getitem<a", "add_<getitem", "b<add_", "output<b"],
    ),
    "a view from before the write": (_earlier_view, ["a<input", "view<a", "relu_<a", "mul<relu_", "output<mul"]),
    "items written": (
        _items,
        [
            *("empty<", "a<input", "getitem<a", "setitem<empty,getitem"),
            *("getitem<input", "setitem<setitem,getitem", "output<setitem"),
        ],
    ),
    "a buffer written and read": (_buffer, ["a<input", "copy_<a", "b<copy_", "output<b"]),
    "nested outputs": (_nested, ["a<input", "b<a", "output<a", "output<b"]),
    "a given place for the result": (_out, ["a<input", "add<input,a", "output<add"]),
    "parameters are constants": (
        lambda n, x: functional.linear(x, n.a.weight.t() * 2) * n.scale,
        ["t<", "mul<t", "linear<input,mul", "mul<linear", "output<mul"],
    ),
    "objects that modules pass on": (
        lambda n, x: n.holds(x).x + 1,
        ["holds<input", "add<holds", "output<add"],
    ),
    "the input itself": (lambda n, x: x, ["output<input"]),
    "nothing new": (lambda n, x: n.a(x.contiguous().to(torch.float32)), ["a<input", "output<a"]),
    "attributes that are tensors": (lambda n, x: n.a(x.mT.mT), ["mT<input", "mT<mT", "a<mT", "output<a"]),
    "detached": (lambda n, x: n.b(n.a(x).detach()), ["a<input", "detach<a", "b<detach", "output<b"]),
}
