"""Matrix products of integers with floats, which the meta device lets through."""

from __future__ import annotations

from collections.abc import Iterable

from hookcli.hooks.function_calls import Items, Shape, Signature


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
