"""Compares runs of a model in eval mode: on the same batch again, with other items in the batch, and in halves."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from hookcli.checks.measurements import Comparison, EvalOutputs, Evaluation
from hookcli.engine.eval_mode import Arguments, EvalRuns, in_eval, run_in_eval
from hookcli.engine.eval_outputs import judged_outputs
from hookcli.engine.mixing import captured, first_apart, mixing
from hookcli.engine.outputs import common, comparable, largest_difference, with_others
from hookcli.errors import ModelError
from hookcli.probes.repeated_runs import (
    FirstItemProbe,
    RandomDrawsProbe,
    first_items,
)
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators, random_states

_NO_BATCH = "the inputs have no common dimension 0 of two or more; use --batch-size 2"
_HELD = "an argument is a container of tensors, such as a list of images, so the batch dimension is unknown"
_LAYOUT = "an input is nested or sparse, so no other batch can be made from it"
_ODD = "the output has a layout or dtype whose values can't be compared"
_STATE = "the same batch gives a different result when run again (HK029)"
_LARGER = 100  # times a repetition's difference: beyond it a difference is due to the other items of the batch


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
    row, _ = first_apart(model, (inputs, FirstItemProbe()), (inputs, FirstItemProbe()))
    return Comparison(value, row.fqn if row else "")


def _drawing(model: nn.Module, inputs: Arguments) -> tuple[str, ...]:
    """The modules that draw random numbers in eval mode, or "" for the model if none of its parts is seen to."""
    probe = RandomDrawsProbe(partial(random_states, accelerators(model, inputs)))
    with in_eval(model), torch.no_grad():
        return tuple(str(row.fqn) for row in captured(model, inputs, probe)) or ("",)


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
    if value == 0:
        return Comparison(value)
    return mixing(model, (inputs, others), size, runs.changed, value)


def _first_items(a: Tensor, b: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The first item of two outputs, along the dimension of that size where they differ least."""
    if a.shape != b.shape:
        return common(a[:1], b[:1])
    both = zip(first_items(a, size), first_items(b, size), strict=True)
    return min(both, key=lambda pair: math.inf if math.isnan(apart := largest_difference([pair])) else apart)


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
