"""Tolerances between two results, one relative and one absolute.

Both are taken by norm, not by element: results agree if ``rms(a - b) <= rtol * rms(a) + atol``. Elementwise, as in
``torch.allclose``, every value near zero in a long chain of layers would need an exception. For statistics, the limit
is what such a difference can do to them at most (`allowance`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hookcli.table import TensorStats
from hookcli.table.columns import DECLARED
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
