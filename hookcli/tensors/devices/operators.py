"""Statistics on a device by PyTorch's operators, for devices without Triton: in few passes, and without a wait."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hookcli.table import STATS_KEYS
from hookcli.tensors.chunks import unit_of


def wide(device: torch.device) -> torch.dtype:
    """The dtype in which a device adds up: float64, but float32 on MPS, which has no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def moments(x: Tensor) -> Tensor:
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
