"""Runs that some checks need beside the first: in eval mode on other batches, and again as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.checks.base import Comparison, Evaluation
from hookcli.engine import failure
from hookcli.engine.capture import capture
from hookcli.engine.preserve import Kept, copied, preserved, set_mode
from hookcli.errors import ModelError, UserCode
from hookcli.hooks.unhooked import uncompiled
from hookcli.probes.base import Probe
from hookcli.probes.first_item import FirstItemProbe
from hookcli.probes.random_draws import RandomDrawsProbe
from hookcli.report import Row
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators, random_states, set_random_states

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Output = list[Tensor | None]
"""The tensors that a model returned, as plain ones; None for one whose values can't be compared."""
_NO_BATCH = "the inputs have no common dimension 0 of two or more; a --batch-size of 2 tells"
_HELD = "an argument holds tensors, as a list of images does, and which dimension is the batch is not known"
_ODD = "the output has a layout or dtype whose values can't be compared"
_STATE = "the same batch gives another result when it is run again (HK029)"
_LARGER = 100  # what others in the batch change must be, beside what running again changes, to be their doing
_SPREAD = 1e-6  # relative: beyond it statistics of the same values by the same kernels do not differ


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Eval mode, and then for each module the mode that it had.

    By `train(mode)`, which a module may have of its own (a low-rank adapter's merges it into the weight, and takes it
    out again but for rounding), and by their flags where parts had another mode than the whole.
    """
    modes = [(module, module.training) for module in model.modules()]
    own = [module for module, _ in modes if type(module).train is not nn.Module.train]
    held = Kept(p for module in own for p in module.parameters())
    mode = model.training
    set_mode(model, False)
    try:
        yield
    finally:
        set_mode(model, mode)
        for module, training in modes:
            module.training = training
        held.put_back()


def evaluate(model: nn.Module, inputs: Arguments, wanted: Collection[str]) -> dict[str, Evaluation | Comparison | str]:
    """`evaluation`, `companions` and `halves` (checks/base.py) as far as wanted; instead of each, why it can't be told.

    Run again on the same batch the model is where there is no other to compare with, or where something moved. Raises
    ModelError where it fails on that batch in eval mode.
    """
    size = batch_size(inputs)
    compares = size is not None and "companions" in wanted
    passed = _evaluated(model, inputs, 1 if compares or "evaluation" not in wanted else 2)
    if passed.outputs[0] and all(x is None for x in passed.outputs[0]):
        return dict.fromkeys(wanted, _ODD)
    unbatched = _HELD if _in_containers(inputs) else _NO_BATCH
    found: dict[str, Evaluation | Comparison | str] = dict.fromkeys(wanted, unbatched)
    if size is not None:
        ways: dict[str, Callable[..., Comparison | str]] = {"companions": _companions, "halves": _halves}
        found |= {name: way(model, inputs, size, passed.outputs[0]) for name, way in ways.items() if name in wanted}
    companions = found.get("companions")
    apart = companions.value if isinstance(companions, Comparison) else 0.0
    if len(passed.outputs) < 2 and (apart or passed.moved):
        passed = _evaluated(model, inputs, 2)
    again = _again(model, inputs, passed)
    if again and again.value and not again.value * _LARGER < apart:
        found |= {name: _STATE for name in wanted if name == "companions" or "evaluation" in wanted}
    if "evaluation" in wanted:
        found["evaluation"] = Evaluation(_drawing(model, inputs) if passed.drew else (), again)
    return found


def batch_size(inputs: Arguments) -> int | None:
    """The size of dimension 0 that all tensors among the arguments share; None where there is none above 1."""
    if _in_containers(inputs):
        return None  # a list of images: what is in it is an item, not a batch
    sizes = {x.size(0) if x.dim() else 0 for x in (*inputs[0], *inputs[1].values()) if isinstance(x, Tensor)}
    return sizes.pop() if len(sizes) == 1 and min(sizes) > 1 else None


def _in_containers(inputs: Arguments) -> bool:
    """Whether an argument that is no tensor holds some."""
    values = (*inputs[0], *inputs[1].values())
    return any(not isinstance(value, Tensor) and any(tree.leaves(value)) for value in values)


class _Pass(NamedTuple):
    """What the model returned each time; whether random numbers were drawn; the buffers that changed; what failed."""

    outputs: Sequence[Output]
    drew: bool = False
    moved: Sequence[str] = ()
    failed: str = ""


def _evaluated(model: nn.Module, inputs: Arguments, times: int = 1) -> _Pass:
    """Run it in eval mode, from the state that it is in, each time with the same random numbers.

    It and its inputs are in the same state afterwards. Raises ModelError where the first time fails.
    """
    devices = accelerators(model, inputs)
    with _explaining(model), uncompiled(model), preserved(model, inputs), in_eval(model), torch.no_grad():
        before = random_states(devices)
        held = {name: x.clone() for name, x in model.named_buffers() if not is_lazy(x)}
        outputs = [_called(model, inputs)]
        drew = not random_states(devices).same(before)
        moved = [n for n, x in model.named_buffers() if n in held and not _same(held[n], x)]
        failed = ""
        for _ in range(times - 1):
            set_random_states(devices, before)
            try:
                with _explaining(model):
                    outputs.append(_called(model, inputs))
            except ModelError as error:
                failed = f"in eval mode, the second time, {error}".replace("\n ", "")
        return _Pass(outputs, drew, moved, failed)


def _explaining(model: nn.Module) -> AbstractContextManager[None]:
    return UserCode(lambda error: ModelError(failure.explain(error, model)))


def _called(model: nn.Module, inputs: Arguments) -> Output:
    """Its output on inputs of its own, which the output may share memory with."""
    args, kwargs = copied(inputs)
    return [_plain(x) for _, x in tree.leaves(model(*args, **kwargs))]


def _plain(x: Tensor) -> Tensor | None:
    """The tensor as a strided one, whatever its layout; None where PyTorch has no way to compare what it holds."""
    with suppress(RuntimeError, TypeError, ValueError), torch._C.DisableTorchFunctionSubclass():
        x = x.dequantize() if x.is_quantized else x
        x = x if x.layout is torch.strided else x.to_dense()
        if tree.is_plain(x):
            x.reshape(-1)[:1].to(torch.complex128)  # which some dtypes of a few bits don't know
            return x.as_subclass(Tensor)
    return None


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.device == b.device and torch.equal(a, b)


def _output(model: nn.Module, inputs: Arguments) -> Output:
    return _evaluated(model, inputs).outputs[0]


def _again(model: nn.Module, inputs: Arguments, passed: _Pass) -> Comparison | None:
    """How far the second output is from the first; None where it was not run twice."""
    moved = [name.rpartition(".")[0] for name in passed.moved]
    if passed.failed:
        return Comparison(math.nan, moved[0] if moved else "", passed.failed)
    if len(passed.outputs) < 2:
        return None
    first, second = passed.outputs
    value = _apart(_pairs(first, second)) if len(first) == len(second) else math.inf
    if value == 0 or moved:
        return Comparison(value, moved[0] if moved else "")
    return Comparison(value, _where(model, (inputs, FirstItemProbe()), (inputs, FirstItemProbe())))


def _drawing(model: nn.Module, inputs: Arguments) -> tuple[str, ...]:
    """The modules that draw random numbers in eval mode; the model itself where its parts are not seen."""
    probe = RandomDrawsProbe(partial(random_states, accelerators(model, inputs)))
    with in_eval(model), torch.no_grad():
        return tuple(str(row.fqn) for row in _captured(model, inputs, probe)) or ("",)


def _pairs(one: Output, other: Output) -> list[tuple[Tensor, Tensor]]:
    """What can be compared of two outputs."""
    return [(a, b) for a, b in zip(one, other, strict=False) if a is not None and b is not None]


def _companions(model: nn.Module, inputs: Arguments, size: int, whole: Output) -> Comparison | str:
    others: Arguments = tree.replace(inputs, _with_others)
    try:
        among_others = _output(model, others)
    except ModelError as error:  # made up as they are, they need not be what the model takes
        return f"with other items beside the first, {error}".replace("\n ", "")
    pairs = [
        (a[:1], b[:1])
        for a, b in _pairs(whole, among_others)
        if a.dim() and a.size(0) == size and b.dim() and b.size(0) == size
    ]
    if not pairs:
        return "no output has the batch in dimension 0"
    value = _apart(pairs)
    place = "" if value == 0 else _where(model, *((x, FirstItemProbe(size)) for x in (inputs, others)))
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


def _where(model: nn.Module, one: tuple[Arguments, Probe], other: tuple[Arguments, Probe]) -> str:
    """The first module that returns something else in the second run than in the first."""
    with in_eval(model):
        for row, beside in zip(_captured(model, *one), _captured(model, *other), strict=False):
            a, b = row.stats, beside.stats
            if row.fqn != beside.fqn or any(not _close(getattr(a, k), getattr(b, k)) for k in ("mean", "std", "l2")):
                return str(row.fqn)
    return ""


def _captured(model: nn.Module, inputs: Arguments, probe: Probe) -> Sequence[Row]:
    args, kwargs = inputs
    return capture(model, kwargs if kwargs and not args else args, [probe])[0].rows


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=_SPREAD, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))


def _halves(model: nn.Module, inputs: Arguments, size: int, whole: Output) -> Comparison | str:
    half = size // 2
    try:
        parts = [_output(model, tree.replace(inputs, partial(_cut, cut))) for cut in (slice(half), slice(half, None))]
    except ModelError as error:
        return Comparison(math.nan, failed=f"on half of the batch {error}".replace("\n ", ""))
    pairs = []
    for (a, b), (_, c) in zip(*(_pairs(whole, part) for part in parts), strict=False):
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
        a, b = (torch.view_as_real(x.to(torch.complex128).resolve_conj()) if x.is_complex() else x for x in (a, b))
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
