"""The hooks that torch.compile traces: they look at the tensors that pass, by the operator that shows them.

torch.compile runs this file's Python while it traces, so it is plain: no generators, no caches, no classes of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.hooks.compiled.operator import Operators
from hookcli.hooks.kinds import HookKind

Found = list[tuple[str, Tensor]]
SEPARATOR = "\x1f"
UNSEEN = "?"
_PLAIN = (type(None), bool, int, float, complex, str)
_IN, _OUT = HookKind.TENSOR_GRAD_INPUT.value, HookKind.TENSOR_GRAD_OUTPUT.value


@dataclass
class Asked:
    """What the probes asked for beside what modules return."""

    inputs: bool = False
    input_grads: bool = False
    output_grads: bool = False


class Shown(torch.autograd.Function):
    """A tensor as it is, whose gradient is looked at on its way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tie: Tensor, gradient: Any, call: Tensor, what: str) -> Tensor:
        """Return the tensor, detached: autograd then takes it for no view, so that it may be changed in place."""
        ctx.save_for_backward(call)
        ctx.gradient, ctx.what = gradient, what
        return x.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (call,) = ctx.saved_tensors
        return grad, ctx.gradient(grad.detach(), call, ctx.what), None, None, None


def traced_hooks(
    way: Operators, place: Tensor, asked: Asked, leaf: bool, enter: Callable[..., Any], leave: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The pair of hooks of a module. `enter` and `leave` are called instead where the call is not traced.

    In a `leaf`, a module without modules, no call can begin: it is looked at once, when it returns, unless what it
    receives is asked for. PyTorch gives no keyword arguments to a hook that was removed since the call began.
    """

    def before(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
        if not torch.compiler.is_compiling():
            return enter(module, args, *rest)
        kwargs = rest[0] if rest else {}
        if leaf and not (asked.inputs or asked.input_grads):
            return None
        grads = asked.input_grads and torch.is_grad_enabled()
        others: list[str] = []
        received = _arguments(args, kwargs, others) if asked.inputs or grads else []
        call = way.look([x.detach() for _, x in received], way.order, place, _described("enter", "", received, others))
        if not grads:
            return None
        shown = _Once(way, call, _IN, received, [])
        return tuple([_replaced(x, shown) for x in args]), {key: _replaced(x, shown) for key, x in kwargs.items()}

    def after(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
        if not torch.compiler.is_compiling():
            return leave(module, args, *rest)
        kwargs, output = rest[0] if rest[1:] else {}, rest[-1]
        others: list[str] = []
        returned = _walked(output, "", [], others)
        whole = leaf and not (asked.inputs or asked.input_grads)
        what = _described("call" if whole else "leave", type(output).__name__, returned, others)
        call = way.look([x.detach() for _, x in returned], way.order, place, what)
        if not (asked.output_grads and torch.is_grad_enabled()):
            return None
        changed = getattr(module, "inplace", False)
        received = [] if changed else [x for _, x in _arguments(args, kwargs, [])]
        return _replaced(output, _Once(way, call, _OUT, returned, received))

    return before, after


class _Once:
    """Puts shown tensors in place of those found, the same for the same one. `received` are handed on if returned."""

    def __init__(self, way: Operators, call: Tensor, kind: str, tensors: Found, received: list[Tensor]) -> None:
        self.way, self.call, self.kind, self.tensors, self.received = way, call, kind, tensors, received
        self.made: list[tuple[Tensor, Tensor]] = []

    def show(self, x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x
        for old, same in self.made:
            if old is x:
                return same
        handed_on = "handed on" if [y for y in self.received if y is x] else ""
        what = SEPARATOR.join([self.kind, handed_on, *[path for path, y in self.tensors if y is x]])
        new: Tensor = Shown.apply(x, self.way.tie, self.way.gradient, self.call, what)
        self.made.append((x, new))
        return new


def _described(what: str, kind: str, tensors: Found, others: list[str]) -> str:
    """The label of a look: its kind, the type that holds the tensors, their paths (+: needs gradients), and others."""
    return SEPARATOR.join([what, kind, *[("+" if x.requires_grad else "-") + path for path, x in tensors], *others])


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any], others: list[str]) -> Found:
    """As `tree.arguments`."""
    if len(args) == 1 and not kwargs:
        return _walked(args[0], "", [], others)
    return _walked(kwargs, "", _walked(args, "", [], others), others)


def _items(value: Any) -> list[tuple[str, Any, Any]] | None:
    """As `items_of`, of the containers that torch.compile can trace: an item's step of the path, its key, the item."""
    if isinstance(value, dict):
        return [(f'["{key}"]' if isinstance(key, str) else f"[{key!r}]", key, item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", name, getattr(value, name)) for name in value._fields]
    if isinstance(value, (list, tuple, deque)):
        return [(f"[{index}]", index, item) for index, item in enumerate(value)]
    # torch 2.11 does not trace is_dataclass(None).
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return [(f".{one.name}", one.name, getattr(value, one.name)) for one in fields(value)]
    return None


def _walked(value: Any, path: str, tensors: Found, others: list[str]) -> Found:
    """As `tree.leaves`; also adds the paths and types of `others`, which can't be looked into."""
    if isinstance(value, Tensor):
        tensors.append((path, value))
    elif not isinstance(value, _PLAIN):
        items = _items(value)
        if items is None:
            others.append(f"{UNSEEN}{path} {type(value).__name__}")
        for step, _, item in items or ():
            _walked(item, path + step, tensors, others)
    return tensors


def _replaced(value: Any, shown: _Once) -> Any:
    """The value with shown tensors in it; lists, mappings and dataclasses stay the same objects."""
    if isinstance(value, Tensor):
        return shown.show(value)
    items = _items(value) or []
    new = [_replaced(item, shown) for _, _, item in items]
    if not [one for one, (_, _, item) in zip(new, items, strict=True) if one is not item]:
        return value
    if isinstance(value, tuple):
        return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)
    for one, (_, key, item) in zip(new, items, strict=True):
        if one is not item:
            if isinstance(value, (dict, list, deque)):
                value[key] = one
            else:
                setattr(value, key, one)
    return value
