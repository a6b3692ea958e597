"""Figures of tensors on their device: by Triton's kernels, which are launched here, or else by PyTorch's operators.

Kernels run in the current stream of a tensor's device; nothing waits and nothing is read back.

Tensors are reduced one at a time, as hooks show them: an operation that follows may change one in place, so none can
be kept until a launch for several pays. Up to 8192 elements a tensor takes one launch, a larger one two.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from hookcli.table import STATS_KEYS
from hookcli.table.discrepancy import KEYS
from hookcli.table.histogram import FORMATS
from hookcli.tensors import torch_private
from hookcli.tensors.chunks import unit_of
from hookcli.tensors.library import is_readable

_DEVICES = ("cuda", "xpu")  # of PyTorch's device types those that Triton compiles for; ROCm's GPUs are "cuda", too
# What float32 holds exactly, and what it does not. Values of 8-bit floats are looked up.
_NARROW = {torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.bool}
_WIDE = {torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64}
TILE = 1024
"""Elements that a program reads at a time: 8 for each of its 128 threads, which is 16 bytes of a 16-bit type."""
PROGRAMS = 1024
"""The largest number of programs, and of rows to merge: about as many as a large GPU runs at once."""
FEWEST = 8
"""The smallest number of a program's tiles: with fewer, another launch costs more than further programs save."""
OPTIONS = {"num_warps": 4, "enable_fp_fusion": True}  # a choice between fusing or not, which Triton else warns of
_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
_given_up = False


def by_kernels(make: Callable[[], Tensor], *tensors: Tensor) -> Tensor | None:
    """The result of `make`, which launches kernels that read these tensors; None if the operators must take over.

    Kernels that can't be compiled are not tried again; reports then have a note.
    """
    global _given_up
    if _given_up:
        return None
    for x in tensors:  # one-dimensional and contiguous, to be read by their addresses
        known = x.dtype in _NARROW or x.dtype in _WIDE or _is_float8(x.dtype)
        if not (known and (x.device.type in _DEVICES or _interpreted) and is_readable(x)):
            return None
    try:
        device = tensors[0].device
        with torch.accelerator.device_index(device.index) if device.type in _DEVICES else nullcontext():
            return make()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no Triton, no compiler for it, a GPU that it does not know, a kernel that it refuses
        _given_up = True
        line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        failure = f"{type(error).__name__}: {line[:120]}".rstrip(": ")
        why = "Triton is not installed" if isinstance(error, ImportError) else f"Triton failed ({failure})"
        kind = tensors[0].device.type
        torch_private.note(
            f"{why}: statistics on {kind} take PyTorch's operators, which read tensors several times over"
        )
        return None


def _is_float8(dtype: torch.dtype) -> bool:
    return str(dtype).startswith("torch.float8")


def values_and_table(x: Tensor) -> tuple[Tensor, Tensor, bool]:
    """A tensor as kernels read it; if its values are places in a table, that table. Last: whether they are."""
    if not _is_float8(x.dtype):
        x = x.view(torch.uint8) if x.dtype is torch.bool else x
        return x, x, False
    every = torch.arange(256, dtype=torch.int16, device=x.device).to(torch.uint8)
    return x.view(torch.uint8), every.view(x.dtype).to(torch.float32), True


def _programs(numel: int) -> tuple[int, int]:
    """The number of programs for so many elements, and of the tiles that each one reads."""
    tiles = -(-numel // TILE)
    each = max(-(-tiles // PROGRAMS), FEWEST)
    return -(-tiles // each), each


def moments(x: Tensor) -> Tensor | None:
    """The statistics of a one-dimensional contiguous tensor, by STATS_KEYS, in float64; None without kernels for it."""
    return by_kernels(lambda: _moments(x), x)


def _moments(x: Tensor) -> Tensor:
    from hookcli.tensors.devices import kernels

    values, table, tabled = values_and_table(x)
    settings = {"WIDE": x.dtype in _WIDE, "TABLED": tabled}
    return _reduced(kernels.moments, kernels.merged, (values, table), len(STATS_KEYS), settings)


def discrepancy(a: Tensor, b: Tensor) -> Tensor | None:
    """The discrepancy of two such tensors of one size, by its KEYS, in float64; None without kernels for them."""

    def make() -> Tensor:
        from hookcli.tensors.devices import pair_kernels

        integers = a.dtype is b.dtype is torch.int64
        (x, x_table, x_tabled), (y, y_table, y_tabled) = map(values_and_table, (a, b))
        wide = not _WIDE.isdisjoint((a.dtype, b.dtype))
        settings = {"WIDE": wide, "A_TABLED": x_tabled, "B_TABLED": y_tabled, "INTEGERS": integers}
        both = (x, y, x_table, y_table)
        return _reduced(pair_kernels.discrepancies, pair_kernels.merged, both, len(KEYS), settings)

    return by_kernels(make, a, b)


def _reduced(kernel: Any, merged: Any, read: Sequence[Tensor], figures: int, settings: Mapping[str, object]) -> Tensor:
    """Launch a kernel that writes a row of figures per program, and where there are several, one that merges them."""
    count, each = _programs(read[0].numel())
    rows = read[0].new_empty((count, figures), dtype=torch.float64)
    kernel[(count,)](*read, rows, read[0].numel(), each, TILE=TILE, **settings, **OPTIONS)
    if count == 1:
        return rows[0]
    row = rows.new_empty(figures)
    merged[(1,)](rows, row, count, ROOM=PROGRAMS, **OPTIONS)
    return row


def exponents(x: Tensor) -> Tensor | None:
    """The counts of `histograms.device_counts`; None without kernels, and for dtypes that float32 does not hold."""

    def make() -> Tensor:
        from hookcli.tensors.devices import kernels

        count, each = _programs(x.numel())
        counts = torch.zeros(2 * 2048 + len(FORMATS), dtype=torch.int64, device=x.device)
        values, table, tabled = values_and_table(x)
        kernels.exponents[(count,)](values, table, counts, x.numel(), each, TILE=TILE, TABLED=tabled, **OPTIONS)
        return counts.to(torch.float64)

    return None if x.dtype in _WIDE else by_kernels(make, x)


# For devices without Triton: in few passes.


def wide(device: torch.device) -> torch.dtype:
    """The dtype in which a device adds up: float64, but float32 on MPS, which has no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def by_operators(x: Tensor) -> Tensor:
    """The statistics of a one-dimensional chunk, by STATS_KEYS, as one tensor on its device.

    All but mean and variance are taken in the chunk's own dtype; these take one copy of the chunk in `wide`. Elements
    that are not finite count as the least finite one, and are taken out of the sums again.
    """
    kind = wide(x.device)
    if not (x.is_floating_point() and x.element_size() > 1):
        x = x.to(kind)
    some = x.nan_to_num(math.inf, math.inf, math.inf)
    low = some.amin()
    lost = some == math.inf
    missing = lost.sum()
    some.masked_fill_(lost, low)
    n, high, nan = x.numel() - missing, some.amax(), (x != x).sum()
    zeros = (some == 0).sum() - missing * (low == 0)
    copy = some.to(kind)
    unit = unit_of(copy) if x.dtype is torch.float64 else 1.0  # only squares of float64 can leave its range
    copy = copy / unit if x.dtype is torch.float64 else copy
    variance, middle = torch.var_mean(copy, correction=0)
    least = low.to(kind) / unit
    mean = middle + missing * (middle - least) / n
    squares = variance * x.numel() - missing * (least - middle).square() - n * (mean - middle).square()
    squares = squares.clamp(min=0)
    figures = {
        "numel": copy.new_full((), x.numel()),
        "mean": mean * unit,
        "std": (squares / (n - 1).clamp(min=1)).sqrt() * unit,
        "min": low,
        "max": high,
        "l2": (squares + n * mean.square()).sqrt() * unit,
        "zeros": zeros,
        "nan": nan,
        "inf": missing - nan,
    }
    return torch.stack([figures[key].to(kind) for key in STATS_KEYS])
