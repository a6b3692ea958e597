"""Runs a model in eval mode: on the same batch again, with other items in the batch, and in halves."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hookcli.checks.measurements import Comparison, EvalOutputs, Evaluation
from hookcli.diff.tolerance import eps, excess
from hookcli.engine import failure
from hookcli.engine.capture import capture
from hookcli.engine.gradients import again_with_gradients
from hookcli.engine.inputs import Call
from hookcli.engine.outputs import Output, common, comparable, largest_difference, plain, unchanged, with_others
from hookcli.engine.preserve import SavedValues, copied, preserved, set_mode
from hookcli.engine.step import Step
from hookcli.errors import ModelError, UserCode
from hookcli.hooks.parts import uncompiled
from hookcli.hooks.torch_private.modules import BatchNorm
from hookcli.probes.activations import ActivationsProbe
from hookcli.probes.base import Probe
from hookcli.probes.inventory import InventoryProbe
from hookcli.probes.repeated_runs import FirstItemProbe, RandomDrawsProbe, first_items
from hookcli.table import STATS_COLUMNS, Row
from hookcli.table.marks import MASK, WRITTEN, is_lost
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators, random_states, set_random_states
from hookcli.tensors.stats import measure, resolve

Arguments = tuple[tuple[object, ...], dict[str, object]]
_NO_BATCH = "the inputs have no common dimension 0 of two or more; use --batch-size 2"
_HELD = "an argument is a container of tensors, such as a list of images, so the batch dimension is unknown"
_LAYOUT = "an input is nested or sparse, so no other batch can be made from it"
_ODD = "the output has a layout or dtype whose values can't be compared"
_STATE = "the same batch gives a different result when run again (HK029)"
_LARGER = 100  # times a repetition's difference: beyond it a difference is due to the other items of the batch
_ROUNDING = 16  # units in the last place by which kernels for other batch sizes may move the elements, by their rms


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Set eval mode, and restore each module's own mode after the block.

    `train(mode)` is called because a module may override it (a low-rank adapter merges itself into the weight, and out
    again up to rounding), then flags are set for parts whose mode differed from the model's.
    """
    modes = [(module, module.training) for module in model.modules()]
    overriding = [module for module, _ in modes if type(module).train is not nn.Module.train]
    held = SavedValues(p for module in overriding for p in module.parameters())
    mode = model.training
    set_mode(model, False)
    try:
        yield
    finally:
        set_mode(model, mode)
        for module, training in modes:
            module.training = training
        held.put_back()


Measured = Evaluation | EvalOutputs | Comparison | str


def evaluate(
    model: nn.Module, inputs: Arguments, wanted: Collection[str], ops: str | None = None
) -> dict[str, Measured]:
    """Measure `evaluation`, `eval_outputs`, `companions` and `halves` (checks/measurements.py) as far as wanted; a text
    says why one can't be.

    The model is run again on the same batch if no other batch can be made, or if outputs differed or buffers changed.
    Raises ModelError if it fails on that batch in eval mode.
    """
    size = batch_size(inputs)
    compares = size is not None and "companions" in wanted
    runs = _run_in_eval(model, inputs, 1 if compares or "evaluation" not in wanted else 2)
    if runs.outputs[0] and all(x is None for x in runs.outputs[0]):
        return dict.fromkeys(wanted, _ODD)
    unbatched = _HELD if _in_containers(inputs) else _NO_BATCH if all(map(tree.is_dense, _tensors(inputs))) else _LAYOUT
    measured: dict[str, Measured] = dict.fromkeys(wanted, unbatched)
    if size is not None:
        ways: dict[str, Callable[..., Comparison | str]] = {"companions": _companions, "halves": _halves}
        measured |= {name: way(model, inputs, size, runs.outputs[0]) for name, way in ways.items() if name in wanted}
    companions = measured.get("companions")
    difference = companions.value if isinstance(companions, Comparison) else 0.0
    if len(runs.outputs) < 2 and (difference or runs.changed):
        later = _run_in_eval(model, inputs, 2)
        runs = later._replace(outputs=[*runs.outputs, *later.outputs])
    again = _again(model, inputs, runs)
    if again and again.value and not again.value * _LARGER < difference:
        measured |= {name: _STATE for name in wanted if name == "companions" or "evaluation" in wanted}
    if "eval_outputs" in wanted:
        judged = _eval_outputs(model, inputs, runs.outputs, ops)
        measured["eval_outputs"] = replace(judged, gradients=runs.gradients)
    if "evaluation" in wanted:
        measured["evaluation"] = Evaluation(_drawing(model, inputs) if runs.drew else (), again)
    return measured


def _eval_outputs(model: nn.Module, inputs: Arguments, outputs: Sequence[Output], ops: str | None) -> EvalOutputs:
    """The first output of runs in eval mode with a value that is not finite, and the modules in which they begin.

    The run that shows most is had without PyTorch's fused attention; values that are finite there come from that path.
    """
    of_runs = (resolve([measure(x) for x in output if x is not None]) for output in outputs)
    tables = ([Row({"fqn": "", "call": 0}, stats) for stats in measured] for measured in of_runs)
    returned = next((rows for rows in tables if any(map(is_lost, rows))), None)
    if returned is None:
        return EvalOutputs()
    call = Call(*inputs)
    with in_eval(model), torch.no_grad():
        inventory, activations = capture(
            model, call, probes=[InventoryProbe(backward=False), ActivationsProbe()], ops=ops
        )
        if any(map(is_lost, activations.rows)):
            return EvalOutputs(activations.rows, inventory.rows)
        as_run = _captured(model, inputs, ActivationsProbe())
    if any(map(is_lost, as_run)):
        return EvalOutputs(as_run, fused=True)
    masked = any(row.get("scores") in (MASK, WRITTEN) for row in as_run if not row.fqn)
    return EvalOutputs() if masked else EvalOutputs(returned)


def batch_size(inputs: Arguments) -> int | None:
    """The size of dimension 0 shared by all tensors among the arguments; None unless it is above 1."""
    if _in_containers(inputs) or not all(map(tree.is_dense, _tensors(inputs))):
        return None  # in a list of images each tensor is an item, not a batch
    sizes = {x.size(0) if x.dim() else 0 for x in _tensors(inputs)}
    return sizes.pop() if len(sizes) == 1 and min(sizes) > 1 else None


def _tensors(inputs: Arguments) -> list[Tensor]:
    return [x for x in (*inputs[0], *inputs[1].values()) if isinstance(x, Tensor)]


def _in_containers(inputs: Arguments) -> bool:
    """True if an argument is a container of tensors."""
    return any(not isinstance(x, Tensor) and any(tree.leaves(x)) for x in (*inputs[0], *inputs[1].values()))


class _EvalRuns(NamedTuple):
    """The outputs of each run; whether random numbers were drawn; the buffers that changed; the second run's error;
    whether gradients were on, since the model fails without.
    """

    outputs: Sequence[Output]
    drew: bool = False
    changed: Sequence[str] = ()
    failed: str = ""
    gradients: bool = False


def _run_in_eval(model: nn.Module, inputs: Arguments, times: int = 1) -> _EvalRuns:
    """Run the model in eval mode with gradients off, or on if it fails without them. Raises as `_eval_runs`."""
    return again_with_gradients(partial(_eval_runs, model, inputs, times), Step())


def _eval_runs(model: nn.Module, inputs: Arguments, times: int, gradients: bool) -> _EvalRuns:
    """Run the model in eval mode, each time with the same random numbers.

    The model and its inputs are afterwards as before. Raises ModelError if the first run fails.
    """
    devices, explaining = accelerators(model, inputs), UserCode(lambda error: failure.explain(error, model))
    with explaining, uncompiled(model), preserved(model, inputs), in_eval(model), torch.set_grad_enabled(gradients):
        before = random_states(devices)
        buffers = {name: x.clone() for name, x in model.named_buffers() if not is_lazy(x)}
        outputs = [_called(model, inputs)]
        drew = not random_states(devices).same(before)
        changed = [n for n, x in model.named_buffers() if n in buffers and not unchanged(buffers[n], x)]
        failed = ""
        for _ in range(times - 1):
            set_random_states(devices, before)
            try:
                with explaining:
                    outputs.append(_called(model, inputs))
            except ModelError as error:
                failed = f"in eval mode, on the second run, {error}".replace("\n ", "")
        return _EvalRuns(outputs, drew, changed, failed, gradients)


def _called(model: nn.Module, inputs: Arguments) -> Output:
    """The output on copies of the inputs, since it may share memory with them."""
    args, kwargs = copied(inputs)
    return [plain(x.detach()) for _, x in tree.leaves(model(*args, **kwargs))]


def _again(model: nn.Module, inputs: Arguments, runs: _EvalRuns) -> Comparison | None:
    """The difference between the two outputs; None if the model was run once."""
    moved = next((name.rpartition(".")[0] for name in runs.changed), None)
    if runs.failed:
        return Comparison(math.nan, moved or "", runs.failed)
    if len(runs.outputs) < 2:
        return None
    first, *others = runs.outputs
    values = [largest_difference(comparable(first, x)) if len(first) == len(x) else math.inf for x in others]
    value = math.nan if any(map(math.isnan, values)) else max(values)
    if value == 0 or moved is not None:
        return Comparison(value, moved or "")
    return Comparison(value, _where(model, (inputs, FirstItemProbe()), (inputs, FirstItemProbe()))[0])


def _drawing(model: nn.Module, inputs: Arguments) -> tuple[str, ...]:
    """The modules that draw random numbers in eval mode, or "" for the model if none of its parts is seen to."""
    probe = RandomDrawsProbe(partial(random_states, accelerators(model, inputs)))
    with in_eval(model), torch.no_grad():
        return tuple(str(row.fqn) for row in _captured(model, inputs, probe)) or ("",)


def _companions(model: nn.Module, inputs: Arguments, size: int, whole: Output) -> Comparison | str:
    others: Arguments = tree.replace(inputs, with_others)
    try:
        among_others = _run_in_eval(model, others).outputs[0]
    except ModelError as error:  # the model need not accept made-up items
        return f"with other items in the batch, {error}".replace("\n ", "")
    outputs = comparable(whole, among_others)
    pairs = [(a, b) for a, b in outputs if a.dim() and b.dim() and a.size(0) == b.size(0) == size]
    if not pairs:
        return "no output has the batch in dimension 0"
    value = largest_difference([_first_items(a, b, size) for a, b in pairs])
    probed = ((x, FirstItemProbe(size)) for x in (inputs, others))
    place, padded = ("", False) if value == 0 else _where(model, *probed)
    module = model.get_submodule(place)
    mixing = (part for part in module.modules() if isinstance(part, BatchNorm) and part.running_mean is None)
    cause = "statistics" if any(mixing) else "padding" * padded
    return Comparison(value, place, excuse=_excuse(module), cause=cause)


def _first_items(a: Tensor, b: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The first item of two outputs, along the dimension of that size where they differ least."""
    if a.shape != b.shape:
        return common(a[:1], b[:1])
    both = zip(first_items(a, size), first_items(b, size), strict=True)
    return min(both, key=lambda pair: math.inf if math.isnan(apart := largest_difference([pair])) else apart)


def _excuse(module: nn.Module) -> str:
    """Why a module's output for the first item may depend on the other items; "" for most modules."""
    if any(getattr(part, "batch_first", None) is False for part in module.modules()):
        return "with batch_first=False this is expected if dimension 0 is the sequence"
    if ".quantized.dynamic" in type(module).__module__:
        return "dynamic quantization uses the range of the whole batch"
    return ""


def _where(model: nn.Module, one: tuple[Arguments, Probe], other: tuple[Arguments, Probe]) -> tuple[str, bool]:
    """The first module whose output differs between the two runs, and whether padding makes it differ.

    Zeros at the end of an output leave its norm alone; where more of them only make it longer, a later module differs.
    """
    padded, longer = "", False
    with in_eval(model):
        both = zip(_captured(model, *one), _captured(model, *other), strict=False)
        for _, rows in groupby(both, lambda pair: (pair[0].fqn, pair[0].get("call"), pair[0].get("path"))):
            tensor = [*rows]  # by each dimension that may be the batch's
            row, beside = next((pair for pair in tensor if _agree(*pair)), tensor[0])
            if row.fqn == beside.fqn and row["shape"] != beside["shape"]:
                longer = True
                padded = padded or ("" if _agree(row, beside, ("l2",)) else str(row.fqn))
            elif not _agree(row, beside):
                return padded or str(row.fqn), longer
            else:
                padded, longer = "", False
    return padded, longer


_STEADY = tuple(column.name for column in STATS_COLUMNS if column.moves)  # figures that few elements move little


def _agree(row: Row, beside: Row, names: Sequence[str] = _STEADY) -> bool:
    """True if rounding explains the difference between two rows, by the precision of their dtype.

    Each statistic is judged by how much it moves if the elements do: a mean near zero is noise of their rms.
    """
    assert row.stats and beside.stats
    rtol = _ROUNDING * eps(row["dtype"])
    pairs = (excess(name, row.stats, beside.stats, rtol, 0.0) for name in names)
    return row.fqn == beside.fqn and all(times <= 1 for times in pairs)


def _captured(model: nn.Module, inputs: Arguments, probe: Probe) -> Sequence[Row]:
    return capture(model, Call(*inputs), probes=probe).rows


def _halves(model: nn.Module, inputs: Arguments, size: int, whole: Output) -> Comparison | str:
    text, cuts = tree.shape_text, (slice(size // 2), slice(size // 2, None))
    batches = [tree.replace(inputs, partial(lambda part, _path, x: x[part], cut)) for cut in cuts]
    try:
        parts = [_run_in_eval(model, batch).outputs[0] for batch in batches]
    except ModelError as error:
        return Comparison(math.nan, failed=f"on half of the batch, {error}".replace("\n ", ""))
    pairs = []
    for (a, b), (_, c) in zip(*(comparable(whole, part) for part in parts), strict=False):
        if a.dim() and a.size(0) == size:
            if not (a.shape[1:] == b.shape[1:] == c.shape[1:] and b.dim() and b.size(0) + c.size(0) == size):
                failed = f"halves give {text(b)} and {text(c)} where the whole gives {text(a)}"
                return Comparison(math.nan, failed=failed)
            pairs.append((a, torch.cat([b, c])))
    return Comparison(largest_difference(pairs)) if pairs else "no output has the batch in dimension 0"
