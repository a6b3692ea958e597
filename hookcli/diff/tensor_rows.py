"""The rows of compared tensors, judged by a tolerance; tensors of several batches are one."""

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
    """A pair of tensors: its place as a row's values, the discrepancy, both dtypes, and the inputs' dtypes.

    `complete`: the discrepancies of all inputs are known.
    """

    values: Mapping[str, Any]
    distance: Discrepancy
    dtypes: tuple[str, str]
    received: Sequence[Discrepancy] = ()
    complete: bool = False


Compared = MeasuredPair | Mapping[str, Any]
"""A pair of tensors, or the values of a row that has no figures and says why."""
_PARAMETER = "grad"  # the kind of gradients that do not grow with the batch


class MergedPairs:
    """Compared tensors of several batches by their place: their discrepancy is taken over all batches, concatenated."""

    def __init__(self) -> None:
        self._places: dict[Hashable, Compared] = {}

    def add(self, pairs: Iterable[Compared]) -> None:
        """Take in a batch. A place that could not be compared in one batch has no figures."""
        for item in pairs:
            values = item.values if isinstance(item, MeasuredPair) else item
            in_b = values.get("change") == "added"  # under B's name, which another place may have in A
            key = (in_b, *place_of(values))
            earlier = self._places.setdefault(key, item)
            if earlier is not item and isinstance(earlier, MeasuredPair):
                self._places[key] = _merged(earlier, item) if isinstance(item, MeasuredPair) else item

    def pairs(self) -> list[Compared]:
        """All places, the first batch's first."""
        return list(self._places.values())


def _merged(one: MeasuredPair, other: MeasuredPair) -> MeasuredPair:
    values = dict(one.values)
    if values["kind"] != _PARAMETER:
        values["shape"] = concatenated(one.values["shape"], other.values["shape"])
    pairs = zip(one.received, other.received, strict=False)
    received = [Discrepancy.merge(pair) for pair in pairs]
    complete = one.complete and other.complete
    distance = Discrepancy.merge([one.distance, other.distance])
    return replace(one, values=values, distance=distance, received=received, complete=complete)


def tensor_rows(measured: Sequence[MeasuredPair], tolerance: Tolerance) -> list[Row]:
    """A row for each pair: its figures, `times` the tolerance and, if that is above 1, `beyond` and `differs`, the
    reason.

    `growth` is the relative error divided by the largest of the module's inputs; None if that is unknown, zero or not
    finite. `received` tells whether the inputs "differ" or are "equal", if that is known; `lost`: elements are NaN, or
    the same Inf, on both sides.
    """
    gradients = [item for item in measured if item.values["kind"] not in _VALUES]
    scales = gradient_scales((item.values["kind"], _rms(item.distance.a_l2, item.distance.numel)) for item in gradients)
    return [_row(item, tolerance, scales.get(item.values["kind"])) for item in measured]


def _row(item: MeasuredPair, tolerance: Tolerance, scale: float | None) -> Row:
    rtol, atol = tolerance.limits(*item.dtypes, scale=scale)
    before = max((one.rel_l2 for one in item.received), default=0.0)
    grows = 0 < before < math.inf and not any(one.nonfinite for one in (item.distance, *item.received))
    growth = item.distance.rel_l2 / before if grows else None
    values = {**item.values, **item.distance.figures(), "growth": growth, **_judgement(item.distance, rtol, atol)}
    if item.distance.finite + item.distance.nonfinite < item.distance.numel:
        values["lost"] = True
    if any(_judgement(one, rtol, atol)["times"] > 1 for one in item.received):
        values["received"] = "differ"
    elif item.received and item.complete:
        values["received"] = "equal"
    return Row(values)


def _judgement(discrepancy: Discrepancy, rtol: float, atol: float) -> dict[str, Any]:
    relative = rtol * _rms(discrepancy.a_l2, discrepancy.numel)
    allowed, error = relative + atol, _rms(discrepancy.error_l2, discrepancy.numel)
    times = times_allowed(error, 0.0, allowed)
    if discrepancy.nonfinite:
        reason = f"{discrepancy.nonfinite:,} of {discrepancy.numel:,} elements are NaN or Inf on one side only"
        return {"times": math.inf, "beyond": True, "differs": reason}
    if times <= 1:
        return {"times": times}
    reason = f"relative l2 {number(discrepancy.rel_l2)} > {number(rtol)}"
    if atol > 0.01 * relative:
        reason = f"rms of the error {number(error)} > {number(allowed)}"
    elif math.isinf(discrepancy.rel_l2):
        reason = f"up to {number(discrepancy.max_abs)} where A is all zero"
    return {"times": times, "beyond": True, "differs": reason}


def _rms(norm: float, numel: int) -> float:
    return norm / math.sqrt(numel) if numel else 0.0


def error_text(row: Row) -> str:
    """How far apart the tensors of a row are, in words."""
    if math.isfinite(row["rel_l2"]):
        return f"relative error {row['rel_l2']:.2g}"
    return str(row.get("differs") or f"up to {number(row['max_abs'])} where A is all zero")


def apart_line(differing: Sequence[Row], compared: str, *, alone: bool = False) -> str:
    """How many of the `compared` tensors at rest differ, and the one furthest apart; `alone`: one side lacks others."""
    line = f"{len(differing):,} of {compared} differ"
    if not (measured := [row for row in differing if "rel_l2" in row.values]):
        return line
    beyond = sum(bool(row.get("beyond")) for row in differing)
    line += f", {beyond:,} beyond tolerance" if beyond else "" if alone else ", within tolerance"
    worst = max(measured, key=lambda row: row["times"])
    return f"{line}; furthest apart: {worst.fqn}, {error_text(worst)}"
