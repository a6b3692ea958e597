"""The figures of a matrix in number formats by their definitions, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from hookcli.capabilities.formats.layout import COARSE
from hookcli.tensors.number_formats import BY_NAME, rounded


def decibels(signal: Tensor, noise: Tensor) -> float:
    ratio = float(signal.double().square().sum()), float(noise.double().square().sum())
    return math.inf if not ratio[1] else 10 * math.log10(ratio[0] / ratio[1])


def right(x: Tensor, name: str, width: int = 1) -> dict[str, Any]:
    """The figures of a matrix by their definitions; `width` columns make one channel."""
    form, q = BY_NAME[name], rounded(x, name)
    error, nonzero = (q - x).double(), x != 0
    blocks = [(e, b) for e, b in zip(error.split(form.block, 1), x.split(form.block, 1), strict=True)]
    shares = [float(e[n].norm() / b[n].double().norm()) for e, b in blocks for n in range(len(x)) if b[n].any()]
    values = {
        f"sqnr_{name}": decibels(x, error),
        f"underflow_{name}": float((nonzero & (q == 0)).sum() / nonzero.sum()),
        f"block_error_{name}": max(shares),
    }
    if name not in COARSE:
        return values
    values |= {f"others_{name}": None, f"outlier_cost_{name}": None}
    channel = int(x.abs().amax(0).argmax()) // width
    others = torch.arange(x.shape[1]) // width != channel
    if others.any():
        alone = rounded(x * others, name)[:, others] - x[:, others]
        values[f"others_{name}"] = decibels(x[:, others], error[:, others])
        values[f"outlier_cost_{name}"] = decibels(x[:, others], alone) - values[f"others_{name}"]
    return values


def agrees(row: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    near = {key: x if x is None else pytest.approx(x, rel=1e-6, abs=1e-7) for key, x in expected.items()}
    return {key: row[key] for key in expected} == near
