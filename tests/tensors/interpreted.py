"""Runs Triton's kernels on the CPU, in Triton's interpreter, and prints what they find beside the CPU's own figures.

    TRITON_INTERPRET=1 python interpreted.py brief|sweep

The variable is read as Triton is imported, so this is a program of its own. Its tiles have 64 elements: tensors
of some hundred then have several programs, of several tiles, and a rest.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import patch

for name in [n for n in sys.modules if n.split(".")[0] == "triton" and not n.startswith("triton._C")]:
    del sys.modules[name]  # a fork may have it already, without its interpreter

import torch
import triton
import triton.language
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors.kinds import EIGHT_BITS, FLOATS, INTEGERS, kinds
from tensors.test_stats import CASES
from torch import Tensor
from triton.runtime import interpreter

from hookcli.table import TensorStats
from hookcli.table.discrepancy import KEYS
from hookcli.tensors import chunks, distance, torch_private
from hookcli.tensors.devices import launch
from hookcli.tensors.stats import measure, resolve, stats

SIMILAR = (
    *(
        "one",
        "scalar",
        "all zero",
        "63 elements",
        "128 elements",
        "relu",
        "constant",
        "slice",
        "expanded",
        "scale 1e+30",
        "mean a million",
        "only inf",
        "transposed",
    ),
    *("scale 1e-30", "scale 3e+37", "float64 scale 1e-200", "float64 scale 1e+306", "float16 that overflows"),
    *map(str, (*EIGHT_BITS[1:], *INTEGERS[1:3], *INTEGERS[4:7], torch.float32)),
)
"""Kinds that the sweep alone runs, since a brief run has others like them."""

PAIRED = ("nan and inf", "330 elements", "torch.int64")


def by_kernels(x: Tensor, hist: bool = False) -> TensorStats:
    """The statistics by the kernels."""
    with patch.object(chunks, "on_cpu", lambda values: False):
        return resolve([measure(x, hist=hist)])[0]


def pairs(tensors: Iterable[tuple[str, Tensor]], histograms: Sequence[str]) -> Iterator[tuple[str, list[object]]]:
    """By kind of tensor, the figures and the histogram, by powers of two, by the kernels and by the CPU's path."""
    for name, x in tensors:
        hist = name.startswith(tuple(histograms))
        both = by_kernels(x, hist), resolve([measure(x, hist=hist)])[0]
        yield name, [[stats.floats(), stats.hist.with_linear().to_dict() if stats.hist else None] for stats in both]


@given(
    values=st.lists(st.integers(-1000, 1000), min_size=1, max_size=80),
    exponent=st.integers(-100, 100),
    mean=st.sampled_from([0, 1000, 10**6]),
    bad=st.lists(st.tuples(st.integers(0, 79), st.sampled_from([math.nan, math.inf, -math.inf])), max_size=3),
    kind=st.sampled_from(FLOATS),
)
def agrees(values: list[int], exponent: int, mean: int, bad: list[tuple[int, float]], kind: torch.dtype) -> None:
    """The figures of any tensor are those of the CPU's path."""
    x = ((torch.tensor(values, dtype=torch.float64) + mean) * 2.0**exponent).to(kind)
    for place, value in bad:
        x[place % len(x)] = value
    expected, measured = stats(x), by_kernels(x)
    size = max(abs(expected.min), abs(expected.max)) if expected.finite else 0.0
    for a, b in zip(measured.floats(), expected.floats(), strict=True):
        same = (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-5 * abs(b) + 1e-7 * size
        assert same, (x.tolist(), kind, measured, expected)


def near(x: Tensor) -> Tensor:
    """Another tensor of the shape, dtype and layout, a hundredth away where the dtype has such numbers."""
    if x.dtype.itemsize == 1 or not (x.is_floating_point() or x.is_complex()):
        return x.clone()
    return x + 0.01 * torch.randn(x.shape).to(x.dtype) * torch.linalg.vector_norm(x.nan_to_num(0, 0, 0), math.inf)


def distances(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, list[list[float]]]]:
    """By kind of tensor, the discrepancy from another one, and from that in float64, by the kernels and on the CPU."""
    for name, x in tensors:
        for other in [near(x), *([near(x).double()] if x.is_floating_point() else [])]:
            expected = distance.resolve([distance.compare(x, other)])[0]
            with patch.object(chunks, "on_cpu", lambda values: False):
                found = distance.resolve([distance.compare(x, other)])[0]
            yield f"{name} and {other.dtype}", [[getattr(each, key) for key in KEYS] for each in (found, expected)]


def patch_once() -> None:
    """Have the interpreter exchange the functions of Triton's language once, and not again for each call."""
    everything = SimpleNamespace(__globals__={"tl": triton.language, "core": triton.language.core})
    interpreter._patch_lang(everything)
    interpreter._patch_lang = lambda fn: SimpleNamespace(restore=lambda: None)


def main(sweep: bool) -> None:
    warnings.simplefilter("ignore")  # numpy's, of overflows
    torch.manual_seed(0)
    with suppress(AttributeError):  # another Triton
        patch_once()
    large = dict(pairs(((name, make()) for name, make in CASES.items()), [""])) if sweep else {}
    launch.TILE, launch.PROGRAMS, launch.FEWEST = 64, 4, 1
    settings(max_examples=1000 if sweep else 3, deadline=None, database=None, derandomize=not sweep)(agrees)()
    some = pairs(kinds(300 if sweep else 70), [""] if sweep else ["nan", "formats", "scale 1e-42", "torch.float8"])
    compared = kinds(300) if sweep else (pair for pair in kinds(70) if pair[0] in PAIRED)
    print(json.dumps([large | dict(some), dict(distances(compared)), torch_private.notes()]))


if __name__ == "__main__":
    main(sys.argv[1] == "sweep")
