"""Runs that some checks need beside the first: in eval mode on other batches, and again as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hookcli import failure, tree
from hookcli.checks.base import Comparison
from hookcli.engine import capture
from hookcli.errors import ModelError
from hookcli.preserve import preserved
from hookcli.probes.first import FirstItemProbe

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
T = TypeVar("T")
_NO_BATCH = "the inputs have no common dimension 0 of two or more; a --batch-size of 2 tells"
_SPREAD = 1e-6  # relative: beyond it statistics of the same values by the same kernels do not differ


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Eval mode, and then for each module the mode that it had.

    By `train(mode)`, which a module may have of its own (a low-rank adapter's merges it into the weight, and takes it
    out again but for rounding), and by their flags where parts had another mode than the whole.
    """
    modes = [(module, module.training) for module in model.modules()]
    own = [module for module, _ in modes if type(module).train is not nn.Module.train]
    held = [(p, p.detach().clone()) for module in own for p in module.parameters()]
    mode = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(mode)
        for module, training in modes:
            module.training = training
        for parameter, value in held:
            parameter.data.copy_(value)


def compare_batches(model: nn.Module, inputs: Arguments, wanted: Collection[str]) -> dict[str, Comparison | str]:
    """`companions` and `halves`, as far as wanted: how far apart the outputs are, or why that can't be told.

    Raises ModelError where the model fails on the batch itself in eval mode.
    """
    size = batch_size(inputs)
    if size is None:
        return dict.fromkeys(wanted, _NO_BATCH)
    try:
        whole = _output(model, inputs)
    except Exception as error:
        raise ModelError(failure.explain(error, model)) from error
    ways: dict[str, Callable[..., Comparison | str]] = {"companions": _companions, "halves": _halves}
    return {name: ways[name](model, inputs, size, whole) for name in wanted}


def copied(inputs: T) -> T:
    """The inputs anew: a model may write into what it gets, and runs are compared on the same."""
    copies: T = tree.replace(inputs, lambda _, x: x.detach().clone().requires_grad_(x.requires_grad))
    return copies


def batch_size(inputs: Arguments) -> int | None:
    """The size of dimension 0 that all tensors among the arguments share; None where there is none above 1."""
    values = [*inputs[0], *inputs[1].values()]
    if any(not isinstance(value, Tensor) and any(tree.leaves(value)) for value in values):
        return None  # a list of images: what is in it is an item, not a batch
    sizes = {x.size(0) if x.dim() else 0 for x in values if isinstance(x, Tensor)}
    return sizes.pop() if len(sizes) == 1 and min(sizes) > 1 else None


def _output(model: nn.Module, inputs: Arguments) -> Any:
    """What the model returns in eval mode, from the state that it is in; it is in the same state afterwards."""
    args, kwargs = copied(inputs)
    with preserved(model, inputs, backward=False), in_eval(model), torch.no_grad():
        return model(*args, **kwargs)


def _companions(model: nn.Module, inputs: Arguments, size: int, whole: Any) -> Comparison | str:
    others: Arguments = tree.replace(inputs, _with_others)
    try:
        among_others = _output(model, others)
    except Exception as error:  # made up as they are, they need not be what the model takes
        return f"with other items beside the first, {failure.explain(error, model)}".replace("\n ", "")
    pairs = [
        (a[:1], b[:1])
        for (_, a), (_, b) in zip(tree.leaves(whole), tree.leaves(among_others), strict=False)
        if a.dim() and a.size(0) == size and b.dim() and b.size(0) == size
    ]
    if not pairs:
        return "no output has the batch in dimension 0"
    value = _apart(pairs)
    place = "" if value == 0 else _where(model, inputs, others, size)
    return Comparison(value, place, excuse=_excuse(model.get_submodule(place)))


def _excuse(module: nn.Module) -> str:
    """Why what a module returns for the first item may depend on the others; "" for most."""
    if any(getattr(part, "batch_first", None) is False for part in module.modules()):
        return "with batch_first=False that is as it should be if dimension 0 is the sequence"
    if ".quantized.dynamic" in type(module).__module__:
        return "dynamic quantization takes the range of the whole batch"
    return ""


def _with_others(path: str, x: Tensor) -> Tensor:
    """The first item as it is, among its likes, which the model takes; where it is so already, among zeros or ones."""
    rest, likes = x[1:], x[:1].expand_as(x[1:])
    if not torch.equal(rest, likes):
        return torch.cat([x[:1], likes])
    return torch.cat([x[:1], torch.zeros_like(rest) if rest.any() else torch.ones_like(rest)])


def _where(model: nn.Module, inputs: Arguments, others: Arguments, size: int) -> str:
    """The first module that returns something else for the first item."""
    with in_eval(model):
        look = partial(_looked, model, size)
        for row, other in zip(look(inputs), look(others), strict=False):
            a, b = row.stats, other.stats
            if row.fqn != other.fqn or any(not _close(getattr(a, k), getattr(b, k)) for k in ("mean", "std", "l2")):
                return str(row.fqn)
    return ""


def _looked(model: nn.Module, size: int, inputs: Arguments) -> Any:
    args, kwargs = copied(inputs)
    return capture(model, kwargs if kwargs and not args else args, [FirstItemProbe(size)])[0].rows


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_SPREAD, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))


def _halves(model: nn.Module, inputs: Arguments, size: int, whole: Any) -> Comparison | str:
    half = size // 2
    try:
        parts = [_output(model, tree.replace(inputs, partial(_cut, cut))) for cut in (slice(half), slice(half, None))]
    except Exception as error:
        explained = failure.explain(error, model).replace("\n ", "")
        return Comparison(math.nan, failed=f"on half of the batch {explained}")
    pairs = []
    for (_, a), (_, b), (_, c) in zip(*map(tree.leaves, (whole, *parts)), strict=False):
        if a.dim() and a.size(0) == size:
            if not (a.shape[1:] == b.shape[1:] == c.shape[1:] and b.dim() and b.size(0) + c.size(0) == size):
                return Comparison(math.nan, failed=f"halves give {_shapes(b, c)} where the whole gives {_shapes(a)}")
            pairs.append((a, torch.cat([b, c])))
    return Comparison(_apart(pairs)) if pairs else "no output has the batch in dimension 0"


def _cut(part: slice, path: str, x: Tensor) -> Tensor:
    return x[part]


def _shapes(*tensors: Tensor) -> str:
    return " and ".join(map(tree.shape_text, tensors))


def _apart(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """The largest difference between tensors of a pair, relative to the largest finite value of the first."""
    worst = 0.0
    for a, b in pairs:
        a, b = (x.dequantize() if x.is_quantized else x for x in (a, b))
        a, b = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in (a, b))
        a, b = a.double(), b.double()
        if a.shape != b.shape:
            return math.inf
        same = (a == b) | (a.isnan() & b.isnan())
        difference = float((a - b).abs().masked_fill(same, 0).max()) if a.numel() else 0.0
        scale = float(a.abs().masked_fill(~a.isfinite(), 0).max()) if a.numel() else 0.0
        worst = (
            max(worst, difference / scale if scale else difference and math.inf)
            if difference == difference
            else math.nan
        )
    return worst
