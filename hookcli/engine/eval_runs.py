"""Compares runs of a model in eval mode: on the same batch again, with other items in the batch, and in halves."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn

from hookcli.checks.measurements import Comparison, EvalOutputs, Evaluation
from hookcli.diff.tolerance import eps, excess
from hookcli.engine.capture import capture
from hookcli.engine.eval_mode import Arguments, EvalRuns, in_eval, run_in_eval
from hookcli.engine.eval_outputs import judged_outputs
from hookcli.engine.inputs import Call
from hookcli.engine.outputs import common, comparable, largest_difference, with_others
from hookcli.errors import ModelError
from hookcli.hooks.torch_private.modules import BatchNorm
from hookcli.probes.base import Probe
from hookcli.probes.repeated_runs import (
    PRODUCT,
    SUMS,
    TAKES,
    FirstItemProbe,
    NodesProbe,
    RandomDrawsProbe,
    first_items,
)
from hookcli.table import STATS_COLUMNS, Row
from hookcli.table.names import is_within
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators, random_states

_NO_BATCH = "the inputs have no common dimension 0 of two or more; use --batch-size 2"
_HELD = "an argument is a container of tensors, such as a list of images, so the batch dimension is unknown"
_LAYOUT = "an input is nested or sparse, so no other batch can be made from it"
_ODD = "the output has a layout or dtype whose values can't be compared"
_STATE = "the same batch gives a different result when run again (HK029)"
_LARGER = 100  # times a repetition's difference: beyond it a difference is due to the other items of the batch
_ROUNDING = 16  # units in the last place by which kernels for other batch sizes may move the elements, by their rms


Measured = Evaluation | EvalOutputs | Comparison | str


def evaluate(
    model: nn.Module,
    inputs: Arguments,
    wanted: Collection[str],
    ops: str | None = None,
    batches: Iterable[Arguments] | None = None,
) -> dict[str, Measured]:
    """Measure `evaluation`, `eval_outputs`, `companions` and `halves` (checks/measurements.py) as far as wanted; a text
    says why one can't be.

    The model is run again on the same batch if no other batch can be made, or if outputs differed or buffers changed.
    `batches`, of which `inputs` are the first, are all those whose outputs are judged. Raises ModelError if the model
    fails on one of them in eval mode.
    """
    size = batch_size(inputs)
    compares = size is not None and "companions" in wanted
    runs = run_in_eval(model, inputs, 1 if compares or "evaluation" not in wanted else 2)
    if runs.outputs[0] and all(x is None for x in runs.outputs[0]):
        return dict.fromkeys(wanted, _ODD)
    unbatched = _HELD if _in_containers(inputs) else _NO_BATCH if all(map(tree.is_dense, _tensors(inputs))) else _LAYOUT
    measured: dict[str, Measured] = dict.fromkeys(wanted, unbatched)
    if size is not None:
        ways: dict[str, Callable[..., Comparison | str]] = {"companions": _companions, "halves": _halves}
        measured |= {name: way(model, inputs, size, runs) for name, way in ways.items() if name in wanted}
    companions = measured.get("companions")
    difference = companions.value if isinstance(companions, Comparison) else 0.0
    if len(runs.outputs) < 2 and (difference or runs.changed):
        later = run_in_eval(model, inputs, 2)
        runs = later._replace(outputs=[*runs.outputs, *later.outputs])
    again = _again(model, inputs, runs)
    if again and again.value and not again.value * _LARGER < difference:
        measured |= {name: _STATE for name in wanted if name == "companions" or "evaluation" in wanted}
    if "eval_outputs" in wanted:
        several = batches is not None
        measured["eval_outputs"] = judged_outputs(model, batches or [inputs], runs, ops, several)
    if "evaluation" in wanted:
        measured["evaluation"] = Evaluation(_drawing(model, inputs) if runs.drew else (), again)
    return measured


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


def _again(model: nn.Module, inputs: Arguments, runs: EvalRuns) -> Comparison | None:
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
    row, _ = _first_apart(model, (inputs, FirstItemProbe()), (inputs, FirstItemProbe()))
    return Comparison(value, row.fqn if row else "")


def _drawing(model: nn.Module, inputs: Arguments) -> tuple[str, ...]:
    """The modules that draw random numbers in eval mode, or "" for the model if none of its parts is seen to."""
    probe = RandomDrawsProbe(partial(random_states, accelerators(model, inputs)))
    with in_eval(model), torch.no_grad():
        return tuple(str(row.fqn) for row in _captured(model, inputs, probe)) or ("",)


def _companions(model: nn.Module, inputs: Arguments, size: int, runs: EvalRuns) -> Comparison | str:
    others: Arguments = tree.replace(inputs, with_others)
    try:
        among_others = run_in_eval(model, others).outputs[0]
    except ModelError as error:  # the model need not accept made-up items
        return f"with other items in the batch, {error}".replace("\n ", "")
    outputs = comparable(runs.outputs[0], among_others)
    pairs = [(a, b) for a, b in outputs if a.dim() and b.dim() and a.size(0) == b.size(0) == size]
    if not pairs:
        return "no output has the batch in dimension 0"
    value = largest_difference([_first_items(a, b, size) for a, b in pairs])
    one, other = ((x, FirstItemProbe(size)) for x in (inputs, others))
    row, padded = (None, False) if value == 0 else _first_apart(model, one, other)
    place = row.fqn if row else ""
    module = model.get_submodule(place)
    mixing = (part for part in module.modules() if isinstance(part, BatchNorm) and part.running_mean is None)
    cause = "statistics" if any(mixing) else "padding" * padded
    if _observes(module) and any(is_within(name, place) for name in runs.changed):
        return Comparison(value, place, excuse=_OBSERVES, cause="observer")
    excuse = _excuse(module)
    if row and not (excuse or cause) and (nodes := _of_nodes(model, inputs, others, size)):
        return Comparison(value, place, excuse=nodes, cause="nodes")
    return Comparison(value, place, excuse=excuse, cause=cause)


def _of_nodes(model: nn.Module, inputs: Arguments, others: Arguments, size: int) -> str:
    """The operator that mixes the items as the nodes of a graph are, in a sentence; "" if the first mixes otherwise."""
    one, other = (NodesProbe(size, x) for x in (inputs, others))
    row = None
    with suppress(ModelError):
        row, _ = _first_apart(model, (inputs, one), (others, other), ops="functions")
    if row is None or not (row.get("nodes") in (SUMS, PRODUCT) or (row.get("nodes") == TAKES and one.sums)):
        return ""
    place = f" ({row['source']})" if row["source"] else ""
    return f"{row['type']}{place} mixes them, which is right if they are the nodes of a graph"


def _first_items(a: Tensor, b: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The first item of two outputs, along the dimension of that size where they differ least."""
    if a.shape != b.shape:
        return common(a[:1], b[:1])
    both = zip(first_items(a, size), first_items(b, size), strict=True)
    return min(both, key=lambda pair: math.inf if math.isnan(apart := largest_difference([pair])) else apart)


def _observes(module: nn.Module) -> bool:
    """True for an observer of PyTorch's, or a FakeQuantize with one, as preparing a model for quantization adds."""
    return any(kind.__name__ in ("ObserverBase", "FakeQuantizeBase") for kind in type(module).__mro__)


_OBSERVES = "its observer takes in the range of the whole batch, also in eval mode, until it is disabled"


def _excuse(module: nn.Module) -> str:
    """Why a module's output for the first item may depend on the other items; "" for most modules."""
    if any(getattr(part, "batch_first", None) is False for part in module.modules()):
        return "with batch_first=False this is expected if dimension 0 is the sequence"
    if ".quantized.dynamic" in type(module).__module__:
        return "dynamic quantization uses the range of the whole batch"
    return ""


def _first_apart(
    model: nn.Module, one: tuple[Arguments, Probe], other: tuple[Arguments, Probe], ops: str | None = None
) -> tuple[Row | None, bool]:
    """The row of the first module, or operator, whose output differs between the runs, and whether padding does it.

    Zeros at the end of an output leave its norm alone; where more of them only make it longer, a later module differs.
    """
    padded: Row | None = None
    longer = False
    with in_eval(model):
        both = zip(_captured(model, *one, ops), _captured(model, *other, ops), strict=False)
        for _, rows in groupby(both, lambda pair: (pair[0].fqn, pair[0].get("call"), pair[0].get("path"))):
            tensor = [*rows]  # by each dimension that may be the batch's
            row, beside = next((pair for pair in tensor if _agree(*pair)), tensor[0])
            if row.fqn == beside.fqn and row["shape"] != beside["shape"]:
                longer = True
                padded = padded or (None if _agree(row, beside, ("l2",)) else row)
            elif not _agree(row, beside):
                return padded or row, longer
            else:
                padded, longer = None, False
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


def _captured(model: nn.Module, inputs: Arguments, probe: Probe, ops: str | None = None) -> Sequence[Row]:
    return capture(model, Call(*inputs), probes=probe, ops=ops).rows


def _halves(model: nn.Module, inputs: Arguments, size: int, runs: EvalRuns) -> Comparison | str:
    text, cuts = tree.shape_text, (slice(size // 2), slice(size // 2, None))
    batches = [tree.replace(inputs, partial(lambda part, _path, x: x[part], cut)) for cut in cuts]
    try:
        parts = [run_in_eval(model, batch).outputs[0] for batch in batches]
    except ModelError as error:
        return Comparison(math.nan, failed=f"on half of the batch, {error}".replace("\n ", ""))
    pairs = []
    for (a, b), (_, c) in zip(*(comparable(runs.outputs[0], part) for part in parts), strict=False):
        if a.dim() and a.size(0) == size:
            if not (a.shape[1:] == b.shape[1:] == c.shape[1:] and b.dim() and b.size(0) + c.size(0) == size):
                failed = f"halves give {text(b)} and {text(c)} where the whole gives {text(a)}"
                return Comparison(math.nan, failed=failed)
            pairs.append((a, torch.cat([b, c])))
    return Comparison(largest_difference(pairs)) if pairs else "no output has the batch in dimension 0"
