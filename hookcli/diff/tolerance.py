"""Tolerances between two results, one relative and one absolute; and the rows of compared tensors, judged by them.

Both are taken by norm, not by element: results agree if ``rms(a - b) <= rtol * rms(a) + atol``. Elementwise, as in
``torch.allclose``, every value near zero in a long chain of layers would need an exception. For statistics, the limit
is what such a difference can do to them at most (`allowance`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hookcli.diff.origin import WEIGHT
from hookcli.table import Row, TensorStats
from hookcli.table.columns import DECLARED, place_of
from hookcli.table.discrepancy import Discrepancy
from hookcli.table.formatting import number
from hookcli.table.merge import concatenated
from hookcli.table.stats import EXACT

# Machine epsilons: the distance from 1 to the next number (torch.finfo(...).eps).
_EPS = {
    "float64": 2.0**-52,
    "complex128": 2.0**-52,
    "float32": 2.0**-23,
    "complex64": 2.0**-23,
    "float16": 2.0**-10,
    "complex32": 2.0**-10,
    "bfloat16": 2.0**-7,
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz"), 2.0**-3),
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz"), 2.0**-2),
}


def eps(*dtypes: str) -> float:
    """Return the epsilon of the least precise of these dtypes; 0 for integers and bools, which are exact.

    For GGUF's quantized types it follows from the bits of an element: 2**-7 for Q8_0, 2**-3 for Q4_K.
    """
    largest = 0.0
    for dtype in dtypes:
        quantized = re.search(r"(?:Q|FP)(\d)", dtype)
        of_bits = 2.0 ** (1 - int(quantized[1])) if quantized else 0.0
        largest = max(largest, _EPS.get(dtype, of_bits))
    return largest


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The tolerances asked for; None stands for defaults that suit the dtypes.

    The default `rtol` is the square root of the epsilon of the less precise dtype, so half of its digits agree: 3.5e-4
    for float32, 0.031 for float16, 0.088 for bfloat16, 1.5e-8 for float64. The default `atol` is 0. Gradients lose
    more: a float32 backward through batch normalization over two images is 2.6e-3 off a float64 one, and a gradient
    that would be zero but for rounding (a bias's before the normalization) is noise. Their `rtol` is therefore
    ten times that, and, unless `rtol` was given, their `atol` a tenth of that square root times the largest rms among
    gradients of the same kind.

    `lowered` are dtypes in which a side computes: under autocast float32 results are no more precise than bfloat16.
    `fused`: the sides differ in that one is compiled. Of float32 and float64 results a quarter of the default `rtol` is
    then allowed, 8.6e-5: on the CPU, inductor moved outputs of eight models (resnet18, squeezenet, mobilenet,
    shufflenet, small ones of GPT-2, BERT and Llama, an MLP) by up to 6.1e-7 in eval, 1.6e-5 in train mode. Gradients
    keep theirs. `settings` are patterns of names: modules may differ in such settings.
    """

    rtol: float | None = None
    atol: float | None = None
    settings: Sequence[str] = ()
    lowered: Sequence[str] = ()
    fused: bool = False

    def limits(self, *dtypes: str, scale: float | None = None) -> tuple[float, float]:
        """`rtol` and `atol` between values of these dtypes; with `scale`, the largest rms of their kind, between
        gradients.
        """
        half = math.sqrt(eps(*dtypes, *self.lowered) if eps(*dtypes) else 0.0)
        if self.fused and scale is None and eps(*dtypes) <= eps("float32"):
            half /= 4
        rtol, atol = (half, 0.0) if scale is None else (10 * half, 0.1 * half * scale)
        if self.rtol is not None:
            rtol, atol = self.rtol, 0.0
        return rtol, atol if self.atol is None else self.atol


def allowance(name: str, reference: TensorStats, rtol: float, atol: float) -> float:
    """The largest difference from the reference that a statistic may have.

    With ``e = rtol * rms + atol``, the rms by which the elements may move, the mean moves by at most e, the standard
    deviation by e times ``sqrt(n / (n - 1))`` and the l2 norm by e times ``sqrt(n)`` (triangle inequality; each
    statistic declares its factor). A mean near zero is thus compared with the spread and not with itself. The allowance
    of `min` and `max` is relative to the largest magnitude. A share `rtol` of the elements may change to or from zero,
    or all of them if they are noise (an rms of at most `atol`). Counts of NaN and Inf must be equal.
    """
    if name in EXACT:
        return 0.0
    moved = rtol * reference.rms + atol
    if moves := DECLARED[name].moves:
        return float(moved * moves(reference.finite))
    if name == "zeros":
        return reference.numel if reference.rms <= atol else rtol * reference.numel
    magnitudes = (abs(x) for x in (reference.min, reference.max) if not math.isnan(x))
    return rtol * max(magnitudes, default=0.0) + atol


def excess(name: str, a: TensorStats, b: TensorStats, rtol: float, atol: float) -> float:
    """A statistic's difference in units of its allowance: up to 1 is within tolerance, infinity if nothing is allowed.

    A statistic that is NaN on both sides agrees; one that only one side has does not.
    """
    return times_allowed(getattr(a, name), getattr(b, name), allowance(name, a, rtol, atol))


def times_allowed(a: float, b: float, allowed: float) -> float:
    """The difference of two figures in units of what is allowed: up to 1 is within tolerance."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) / allowed if allowed > 0 and math.isfinite(a - b) else math.inf


def gradient_scales(sizes: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the largest rms among gradients of each kind, for `Tolerance.limits`; `sizes` are pairs (kind, rms)."""
    scales: dict[str, float] = {}
    for kind, size in sizes:
        scales[kind] = max(scales.get(kind, 0.0), size)
    return scales


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
