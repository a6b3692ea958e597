"""Rows of a live comparison: the tensors beyond tolerance, how much the error grew up to each; merged over batches."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookcli.diff.origin import WEIGHT
from hookcli.diff.tolerance import Tolerance, gradient_scales, times_allowed
from hookcli.table import Row
from hookcli.table.columns import place_of
from hookcli.table.discrepancy import Discrepancy
from hookcli.table.formatting import number
from hookcli.table.merge import concatenated

_VALUES = ("input", "output", WEIGHT)  # all others are gradients, which share a scale


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """A pair of tensors: its place as a row's values, the discrepancy, both dtypes, and those of the inputs.

    `complete`: the discrepancies of all inputs are known.
    """

    values: Mapping[str, Any]
    found: Discrepancy
    dtypes: tuple[str, str]
    received: Sequence[Discrepancy] = ()
    complete: bool = False


Compared = MeasuredPair | Mapping[str, Any]
"""A pair of tensors, or the values of a row that has no figures and says why."""
_PARAMETER = "grad"  # the kind of gradients that do not grow with the batch


class MergedPairs:
    """Compared tensors of several batches by their place: their discrepancy is that of all batches, concatenated."""

    def __init__(self) -> None:
        self._places: dict[Hashable, Compared] = {}

    def add(self, found: Iterable[Compared]) -> None:
        """Take in a batch. A place that could not be compared in one batch has no figures."""
        for item in found:
            values = item.values if isinstance(item, MeasuredPair) else item
            in_b = values.get("change") == "added"  # under B's name, which another place may have in A
            key = (in_b, *place_of(values))
            known = self._places.setdefault(key, item)
            if known is not item and isinstance(known, MeasuredPair):
                self._places[key] = _merged(known, item) if isinstance(item, MeasuredPair) else item

    def found(self) -> list[Compared]:
        """All places, those of the first batch first."""
        return list(self._places.values())


def _merged(one: MeasuredPair, other: MeasuredPair) -> MeasuredPair:
    values = dict(one.values)
    if values["kind"] != _PARAMETER:
        values["shape"] = concatenated(one.values["shape"], other.values["shape"])
    pairs = zip(one.received, other.received, strict=False)
    received = [Discrepancy.merge(pair) for pair in pairs]
    complete = one.complete and other.complete
    found = Discrepancy.merge([one.found, other.found])
    return replace(one, values=values, found=found, received=received, complete=complete)


def tensor_rows(measured: Sequence[MeasuredPair], tolerance: Tolerance) -> list[Row]:
    """A row for each pair: its figures, `times` the tolerance and, if that is above 1, `beyond` and `differs`, the
    reason.

    `growth` is the relative error divided by the largest of the module's inputs; None if that is unknown, zero or not
    finite. `received` tells whether the inputs "differ" or are "equal", if that is known.
    """
    gradients = [item for item in measured if item.values["kind"] not in _VALUES]
    scales = gradient_scales((item.values["kind"], _rms(item.found.a_l2, item.found.numel)) for item in gradients)
    return [_row(item, tolerance, scales.get(item.values["kind"])) for item in measured]


def _row(item: MeasuredPair, tolerance: Tolerance, scale: float | None) -> Row:
    rtol, atol = tolerance.limits(*item.dtypes, scale=scale)
    before = max((found.rel_l2 for found in item.received), default=0.0)
    known = 0 < before < math.inf and not any(found.nonfinite for found in (item.found, *item.received))
    growth = item.found.rel_l2 / before if known else None
    values = {**item.values, **item.found.figures(), "growth": growth, **_judgement(item.found, rtol, atol)}
    if any(_judgement(found, rtol, atol)["times"] > 1 for found in item.received):
        values["received"] = "differ"
    elif item.received and item.complete:
        values["received"] = "equal"
    return Row(values)


def _judgement(found: Discrepancy, rtol: float, atol: float) -> dict[str, Any]:
    relative = rtol * _rms(found.a_l2, found.numel)
    allowed, error = relative + atol, _rms(found.error_l2, found.numel)
    times = times_allowed(error, 0.0, allowed)
    if found.nonfinite:
        reason = f"{found.nonfinite:,} of {found.numel:,} elements are NaN or Inf on one side only"
        return {"times": math.inf, "beyond": True, "differs": reason}
    if times <= 1:
        return {"times": times}
    reason = f"relative l2 {number(found.rel_l2)} > {number(rtol)}"
    if atol > 0.01 * relative:
        reason = f"rms of the error {number(error)} > {number(allowed)}"
    elif math.isinf(found.rel_l2):
        reason = f"up to {number(found.max_abs)} where A is all zero"
    return {"times": times, "beyond": True, "differs": reason}


def _rms(norm: float, numel: int) -> float:
    return norm / math.sqrt(numel) if numel else 0.0
