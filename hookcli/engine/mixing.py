"""Finds where two runs in eval mode part, and why a model mixes the items of a batch, or the nodes of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby, takewhile

from torch import nn

from hookcli.checks.measurements import Comparison
from hookcli.diff.tolerance import eps, excess
from hookcli.engine.capture import capture
from hookcli.engine.eval_mode import Arguments, in_eval
from hookcli.engine.inputs import Call
from hookcli.engine.item_verdicts import Verdict
from hookcli.engine.mixed_items import CLEAN, MIXED, SAME, MixedItems
from hookcli.errors import ModelError
from hookcli.hooks.torch_private.modules import BatchNorm
from hookcli.probes.base import Probe
from hookcli.probes.item_paths import ItemPathsProbe, Operation
from hookcli.probes.repeated_runs import FirstItemProbe
from hookcli.table import STATS_COLUMNS, Row
from hookcli.table.names import is_within

_ROUNDING = 16  # units in the last place by which kernels for other batch sizes may move the elements, by their rms


def mixing(
    model: nn.Module, batches: tuple[Arguments, Arguments], size: int, changed: Sequence[str], value: float, item: int
) -> Comparison:
    """The comparison of two batches with one item in common, whose outputs differ by `value`: the first module whose
    output differs, and why, as far as it is known. `changed` are the buffers that change in eval mode.
    """
    one, other = ((inputs, FirstItemProbe(size, item)) for inputs in batches)
    row, padded = first_apart(model, one, other)
    place = row.fqn if row else ""
    module = model.get_submodule(place)
    if any(isinstance(part, BatchNorm) and part.running_mean is None for part in module.modules()):
        return Comparison(value, place, excuse=excuse_of(module), cause="statistics")
    if _OBSERVERS & {kind.__name__ for kind in type(module).__mro__} and any(is_within(n, place) for n in changed):
        excuse = "its observer takes in the range of the whole batch, also in eval mode, until it is disabled"
        return Comparison(value, place, excuse=excuse, cause="observer")
    excuse = excuse_of(module)
    if padded or excuse:
        return Comparison(value, place, excuse=excuse, cause="padding" if padded else "expected")
    verdict = _verdict(model, batches, size, item)
    if verdict.fault:
        return Comparison(value, place, reason=verdict.sentence)
    return Comparison(value, place, excuse=verdict.sentence, cause="nodes" if verdict.nodes else "set")


def excuse_of(module: nn.Module) -> str:
    """Why a module's output for an item may depend on the other items; "" for most modules."""
    if any(getattr(part, "batch_first", None) is False for part in module.modules()):
        return "with batch_first=False this is expected if dimension 0 is the sequence"
    if ".quantized.dynamic" in type(module).__module__:
        return "dynamic quantization uses the range of the whole batch"
    return ""


_OBSERVERS = {"ObserverBase", "FakeQuantizeBase"}  # of PyTorch's, which preparing a model for quantization adds


def _verdict(model: nn.Module, batches: tuple[Arguments, Arguments], size: int, item: int) -> Verdict:
    """Why the items mix, by the operators of two runs."""
    one, other = ItemPathsProbe(size, item), ItemPathsProbe(size, item)
    states: list[str] = []
    with suppress(ModelError), in_eval(model):
        rows, beside = (captured(model, *run, "functions") for run in zip(batches, (one, other), strict=True))
        states = _states(one.operations, other.operations, (rows, beside))
    return MixedItems(model, one.operations, states, size).verdict(one.outputs)


def _states(
    one: Sequence[Operation], other: Sequence[Operation], rows: tuple[Sequence[Row], Sequence[Row]]
) -> list[str]:
    """What each operation returned, as far as both runs took the same way."""
    both = zip(one, other, strict=False)
    states = [SAME for _ in takewhile(lambda pair: (pair[0].fqn, pair[0].made) == (pair[1].fqn, pair[1].made), both)]
    tensors = groupby(zip(*rows, strict=False), lambda pair: (pair[0]["step"], pair[0]["output"]))
    for (step, _), (whole, *parts) in tensors:
        if step < len(states) and not _agree(*whole):
            states[step] = max(states[step], CLEAN if any(_agree(*pair) for pair in parts) else MIXED, key=_ORDER.index)
    return states


_ORDER = (SAME, CLEAN, MIXED)


def first_apart(
    model: nn.Module, one: tuple[Arguments, Probe], other: tuple[Arguments, Probe], ops: str | None = None
) -> tuple[Row | None, bool]:
    """The row of the first module, or operator, whose output differs between the runs, and whether padding does it.

    Zeros at the end of an output leave its norm alone; where more of them only make it longer, a later module differs.
    """
    padded: Row | None = None
    longer = False
    with in_eval(model):
        both = zip(captured(model, *one, ops), captured(model, *other, ops), strict=False)
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


def captured(model: nn.Module, inputs: Arguments, probe: Probe, ops: str | None = None) -> Sequence[Row]:
    """The rows of a probe of one more run, in the mode that the model is in."""
    return capture(model, Call(*inputs), probes=probe, ops=ops).rows
