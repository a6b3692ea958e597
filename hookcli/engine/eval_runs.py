"""Compares runs of a model in eval mode: on the same batch again, with other items in the batch, and in halves."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from hookcli.checks.measurements import Comparison, EvalOutputs, Evaluation, HiddenValues
from hookcli.engine.eval_mode import Arguments, in_eval, run_in_eval
from hookcli.engine.eval_outputs import hidden_values, judged_outputs
from hookcli.engine.mixing import captured, first_apart, mixing
from hookcli.engine.outputs import common, comparable, largest_difference, with_others
from hookcli.engine.preserve import preserved_with_attributes
from hookcli.errors import ModelError
from hookcli.probes.repeated_runs import (
    FirstItemProbe,
    RandomDrawsProbe,
    single_items,
)
from hookcli.tensors import tree
from hookcli.tensors.random_state import accelerators, random_states

_NO_BATCH = "the inputs have no common dimension 0 of two or more; use --batch-size 2"
_HELD = "an argument is a container of tensors, such as a list of images, so the batch dimension is unknown"
_LAYOUT = "an input is nested or sparse, so no other batch can be made from it"
_ODD = "the output has a layout or dtype whose values can't be compared"
_STATE = "the same batch gives a different result when run again (HK029)"
_LARGER = 100  # times a repetition's difference: beyond it a difference is due to the other items of the batch


Measured = Evaluation | EvalOutputs | HiddenValues | Comparison | str
Fails = Callable[[str, Measured], bool]
"""Tells whether a check finds a fault in what was measured, by its name."""
_EACH = ("companions", "evaluation", "eval_outputs")
"""What is measured of each of several batches."""


def evaluate(
    model: nn.Module,
    batches: Iterable[Arguments],
    wanted: Collection[str],
    fails: Fails,
    ops: str | None = None,
    total: str | None = None,
) -> dict[str, Measured]:
    """Measure `evaluation`, `eval_outputs`, `hidden`, `companions` and `halves` (checks/measurements.py), as far as
    wanted; a text says why one can't be.

    Of several batches, `total` if it is known, and else "", each is measured until one `fails`; `halves` and `hidden`
    of the first alone. Raises ModelError if the model fails on a batch in eval mode.
    """
    results: dict[str, Measured] = {}
    waiting, number = set(wanted), 0
    for number, inputs in enumerate(batches, 1):
        numbered = None if total is None else number
        for name, result in EvalOfBatch(model, inputs, waiting, fails, ops, numbered).measured().items():
            if fails(name, result):
                waiting.remove(name)
                results[name] = named(result, f"{number} of {total}" if total else str(numbered or ""))
            elif isinstance(results.get(name, ""), str) or (isinstance(result, EvalOutputs) and result.unseen):
                results[name] = result
        waiting &= {*_EACH}
        if not waiting:
            break
    outputs = results.get("eval_outputs")
    return (
        {**results, "eval_outputs": replace(outputs, batches=number)} if isinstance(outputs, EvalOutputs) else results
    )


def named(result: Measured, batch: str) -> Measured:
    """The result with the number of its batch, which rows of outputs have already."""
    return replace(result, batch=batch) if isinstance(result, Comparison | Evaluation) else result


class EvalOfBatch:
    """What is measured in eval mode on one batch.

    The model is run again on the same batch if no other batch can be made, or if outputs differed or buffers changed.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Arguments,
        wanted: Collection[str],
        fails: Fails,
        ops: str | None,
        number: int | None,
    ) -> None:
        self._model, self._inputs, self._wanted, self._fails = model, inputs, frozenset(wanted), fails
        self._ops, self._number = ops, number
        self._size = batch_size(inputs)
        compares = self._size is not None and "companions" in wanted
        times = 1 if compares or "evaluation" not in wanted else 2
        self._runs = run_in_eval(model, inputs, times, "" if number is None else f"batch {number}: ")

    def measured(self) -> dict[str, Measured]:
        """The measurements by name."""
        model, inputs, wanted = self._model, self._inputs, self._wanted
        first = self._runs.outputs[0]
        if first and all(x is None for x in first):
            return dict.fromkeys(wanted, _ODD)
        measured: dict[str, Measured] = dict.fromkeys(wanted, unbatched(inputs))
        if self._size is not None:
            if "companions" in wanted:
                measured["companions"] = self._companions(self._size)
            if "halves" in wanted:
                measured["halves"] = self._halves(self._size)
        companions = measured.get("companions")
        difference = companions.value if isinstance(companions, Comparison) else 0.0
        again = self._again(difference)
        if again and again.value and not again.value * _LARGER < difference:
            measured |= dict.fromkeys(wanted if "evaluation" in wanted else wanted & {"companions"}, _STATE)
        if "eval_outputs" in wanted:
            measured["eval_outputs"] = judged_outputs(model, inputs, self._runs, self._ops, self._number)
        if "hidden" in wanted:
            measured["hidden"] = hidden_values(model, inputs)
        if "evaluation" in wanted:
            measured["evaluation"] = Evaluation(self._drawing(), again)
        return measured

    def _again(self, difference: float) -> Comparison | None:
        """Another pass compared with the first; None if none was needed.

        One is if a pass with other items gave the first item another output, or if buffers changed.
        """
        model, inputs, runs = self._model, self._inputs, self._runs
        if len(runs.outputs) < 2 and (difference or runs.changed):
            later = run_in_eval(model, inputs, 2)
            self._runs = runs = later._replace(outputs=[*runs.outputs, *later.outputs])
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

    def _drawing(self) -> tuple[str, ...]:
        """The modules that draw random numbers in eval mode, or "" for the model if none of its parts is seen to."""
        if not self._runs.drew:
            return ()
        probe = RandomDrawsProbe(partial(random_states, accelerators(self._model, self._inputs)))
        with in_eval(self._model), torch.no_grad():
            return tuple(str(row.fqn) for row in captured(self._model, self._inputs, probe)) or ("",)

    def _companions(self, size: int) -> Comparison | str:
        """The comparison for the first item; if that stays the same, of the first batch, for the last."""
        first = self._beside_others(size, 0)
        if self._number not in (None, 1) or not isinstance(first, Comparison) or first.value:
            return first
        with preserved_with_attributes(self._model, self._inputs):
            last = self._beside_others(size, -1)
        return last if isinstance(last, Comparison) and last.value else first

    def _beside_others(self, size: int, item: int) -> Comparison | str:
        others: Arguments = tree.replace(self._inputs, partial(with_others, item))
        try:
            among_others = run_in_eval(self._model, others).outputs[0]
        except ModelError as error:  # the model need not accept made-up items
            return f"with other items in the batch, {error}".replace("\n ", "")
        outputs = comparable(self._runs.outputs[0], among_others)
        pairs = [(a, b) for a, b in outputs if a.dim() and b.dim() and a.size(0) == b.size(0) == size]
        if not pairs:
            return "no output has the batch in dimension 0"
        value = largest_difference([of_one_item(a, b, size, item) for a, b in pairs])
        if not self._fails("companions", Comparison(value)):
            return Comparison(value)
        comparison = mixing(self._model, (self._inputs, others), size, self._runs.changed, value, item)
        return replace(comparison, item="last" if item else "first")

    def _halves(self, size: int) -> Comparison | str:
        text, cuts = tree.shape_text, (slice(size // 2), slice(size // 2, None))
        batches = [tree.replace(self._inputs, partial(lambda part, _path, x: x[part], cut)) for cut in cuts]
        try:
            parts = [run_in_eval(self._model, batch).outputs[0] for batch in batches]
        except ModelError as error:
            return Comparison(math.nan, failed=f"on half of the batch, {error}".replace("\n ", ""))
        pairs = []
        for (a, b), (_, c) in zip(*(comparable(self._runs.outputs[0], part) for part in parts), strict=False):
            if a.dim() and a.size(0) == size:
                if not (a.shape[1:] == b.shape[1:] == c.shape[1:] and b.dim() and b.size(0) + c.size(0) == size):
                    failed = f"halves give {text(b)} and {text(c)} where the whole gives {text(a)}"
                    return Comparison(math.nan, failed=failed)
                pairs.append((a, torch.cat([b, c])))
        return Comparison(largest_difference(pairs)) if pairs else "no output has the batch in dimension 0"


def unbatched(inputs: Arguments) -> str:
    """The reason why no other batch can be made of these inputs, if none can."""
    if _in_containers(inputs):
        return _HELD
    return _NO_BATCH if all(map(tree.is_dense, _tensors(inputs))) else _LAYOUT


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


def of_one_item(a: Tensor, b: Tensor, size: int, item: int) -> tuple[Tensor, Tensor]:
    """The item of two outputs, along the dimension of that size where they differ least."""
    if a.shape != b.shape:
        return common(a[item][None], b[item][None])
    both = zip(single_items(a, size, item), single_items(b, size, item), strict=True)
    return min(both, key=lambda pair: math.inf if math.isnan(difference := largest_difference([pair])) else difference)
