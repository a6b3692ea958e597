"""Multiply-accumulates of calls, from their shapes: each is made again on the meta device, where operators are counted.

The formulas are PyTorch's (`torch.utils.flop_counter`), and some more where it has none. By its convention operators
that multiply no matrices count 0: elementwise ones, reductions, norms, pooling, and those that move data. An operator
that is not known to be such a one, and has no formula, is named as uncounted.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name
from torch.utils.flop_counter import flop_registry

from hookcli.hooks.observing_mode import Items, OpaqueArgument, Shape, Signature
from hookcli.hooks.torch_private.overrides import (
    OPERATORS,
    OpOverload,
    OpOverloadPacket,
    TorchDispatchMode,
    without_dispatch_modes,
)
from hookcli.probes.shared.formulas import (
    CONVOLUTION,
    FORMULAS,
    FUNCTION_MACS,
    PRODUCTS,
    has_free_tag,
    multiplies_nothing,
)

_DERIVATIVES = frozenset({"grad", "backward", "_make_dual", "make_dual"})
_OF_ROWS = frozenset({"linear", "matmul", "__matmul__", "mm"})


@cache
def matters(function: object) -> bool:
    """True if a call of this function may cost something."""
    name = getattr(function, "__name__", "")
    if isinstance(function, OpOverload):
        return not free(function)
    if isinstance(function, OpOverloadPacket):
        return not all(free(getattr(function, overload)) for overload in function.overloads())
    return isinstance(function, OPERATORS) or name in _DERIVATIVES or not multiplies_nothing(name)


def free(operator: Any) -> bool:
    """True for an operator that counts 0."""
    if operator.overloadpacket in _registry():
        return False
    if has_free_tag(operator):
        return True
    library, _, name = _qualified(operator).partition("::")
    return library in _OTHERS or (library in ("aten", "torchvision") and multiplies_nothing(name))


# Libraries of PyTorch's own whose operators move data, or stand for others.
_OTHERS = ("prim", "prims", "c10d", "_c10d_functional", "_dtensor", "profiler")


def _registry() -> dict[object, object]:
    """PyTorch's formulas, and those that were registered since; ours where there is none."""
    deformed = getattr(torch.ops.torchvision, "deform_conv2d", None)  # there once torchvision is imported
    return {**FORMULAS, **({deformed: CONVOLUTION} if deformed else {}), **flop_registry}


def cost(call: Signature) -> tuple[int, frozenset[str]]:
    """The multiply-accumulates of a call, and why some are not counted."""
    name = getattr(call.function, "__name__", "")
    if isinstance(call.function, OpaqueArgument):
        return 0, frozenset({call.function.type})
    if name in _DERIVATIVES:
        return 0, frozenset({"derivatives that the forward takes"})
    shapes = _shapes((call.args, call.kwargs))
    if any(shape.nested for shape in shapes) and name not in _OF_ROWS:
        return 0, frozenset({f"{_named(call.function)} of nested tensors"})
    sparse = [shape.density for shape in shapes if shape.density != 1.0]
    if len(sparse) > 1:
        return 0, frozenset({f"{_named(call.function)} of two sparse tensors"})
    macs, unknown = _count(call, name)
    return round(macs * (sparse[0] if sparse else 1)) * call.times, unknown


def _count(call: Signature, name: str) -> tuple[int, frozenset[str]]:
    args, kwargs = _made(call.args), _made(call.kwargs)
    counter = _Counter(products=name in PRODUCTS)
    with ExitStack() as stack:
        stack.enter_context(torch.DisableTorchFunction())
        stack.enter_context(without_dispatch_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        try:
            if name in FUNCTION_MACS:
                return FUNCTION_MACS[name](*args, **kwargs), frozenset()
            if (formula := _formula(call.function)) is not None:
                return int(formula(*args, **kwargs, out_val=_made(call.output))) // 2, frozenset()
            with counter:
                call.function(*args, **kwargs)
        except Exception:  # it needs values, or there is no such operator on the meta device
            counter.unknown.add(_named(call.function))
    return counter.flops // 2, frozenset(counter.unknown)


def _formula(function: object) -> Any:
    packet = function.overloadpacket if isinstance(function, OpOverload) else function
    return _registry().get(packet) if isinstance(packet, OPERATORS) else None


def _qualified(operator: Any) -> str:
    """aten::add, of whatever overload."""
    return str(operator.name()).partition(".")[0]


def _named(function: object) -> str:
    """aten::mm of operators, torch.mm of functions."""
    if isinstance(function, OpOverload):
        return _qualified(function)
    if isinstance(function, OpOverloadPacket):
        return str(function).replace(".", "::", 1)
    return resolve_name(function) or getattr(function, "__name__", None) or str(function)


class _Counter(TorchDispatchMode):
    """Adds up the FLOPs of operators. `products`: multiplying elements is what the function does by definition."""

    def __init__(self, *, products: bool) -> None:
        mode: Any = super()  # untyped
        mode.__init__()
        self.flops = 0
        self.unknown: set[str] = set()
        self._products = products

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = _formula(func)
        if formula is None and not free(func):
            with self:
                whole = func.decompose(*args, **kwargs)
            if whole is not NotImplemented:
                return whole
            self.unknown.add(_named(func))
        output = func(*args, **kwargs)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=output))
        elif self._products and func.overloadpacket is torch.ops.aten.mul and isinstance(args[1], Tensor):
            self.flops += 2 * output.numel()
        return output


def _shapes(value: object) -> list[Shape]:
    if isinstance(value, Shape):
        return [value]
    items = value.items if isinstance(value, Items) else value if isinstance(value, tuple) else ()
    return [shape for item in items for shape in _shapes(item)]


def _made(value: object) -> Any:
    """The argument again, of tensors on the meta device."""
    if isinstance(value, Shape):
        return torch.empty(value.sizes, dtype=value.dtype, device="meta")
    if not isinstance(value, Items):
        return value
    if value.kind is dict:
        return {key: _made(item) for key, item in value.items}
    return value.kind(map(_made, value.items))


def mixed_product(calls: Iterable[Signature]) -> list[str]:
    """The note on the first product that mixes them; none if there is none."""
    mixed = next(filter(None, map(_mixed, calls)), "")
    return [f"the meta device does not check dtypes ({mixed}); {_CHECKED}"] if mixed else []


def _mixed(call: Signature) -> str:
    """Name the dtypes that a matrix product mixes, if devices other than meta refuse it: integers and floats."""
    name = getattr(call.function, "__name__", "")
    if name not in _PRODUCTS or not isinstance(call.args, Items):
        return ""
    kinds = {x.dtype: x.dtype.is_floating_point or x.dtype.is_complex for x in call.args.items if isinstance(x, Shape)}
    named = " and ".join(str(dtype).removeprefix("torch.") for dtype in kinds)
    return f"{name} of {named}" if len({*kinds.values()}) > 1 else ""


_PRODUCTS = ("linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d")
_CHECKED = "`hookcli activations` with the same input does"
