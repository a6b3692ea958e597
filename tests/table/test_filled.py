"""Tensors that are large only where something was written into masked places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hookcli.checks.depth import ExplodingActivations
from hookcli.checks.judgement import judge
from hookcli.checks.measurements import Measurements
from hookcli.checks.precision import Float16Overflow
from hookcli.table import Report, Row
from hookcli.tensors.stats import measure, resolve

torch.manual_seed(0)
SCORES = 3 * torch.randn(4, 8, 8)
MASK = torch.ones(8, 8).triu(1).bool()
LOWEST = torch.finfo(torch.float32).min
MASKED = {
    "lowest": SCORES.masked_fill(MASK, LOWEST),
    "half of it": SCORES.masked_fill(MASK, LOWEST / 2),
    "lowest in bfloat16": SCORES.bfloat16().masked_fill(MASK, torch.finfo(torch.bfloat16).min),
    "lowest in float16": SCORES.half().masked_fill(MASK, -65504),
    "lowest in float64": SCORES.double().masked_fill(MASK, torch.finfo(torch.float64).min),
    "a billion": SCORES.masked_fill(MASK, -1e9),
    "in bfloat16": SCORES.bfloat16().masked_fill(MASK, -1e9),
    "added": SCORES + MASK * -1e9,
    "65000": SCORES.masked_fill(MASK, -65000.0),
    "distances": SCORES.abs().masked_fill(MASK, 1e9),
    "one key of many": torch.randn(2, 4, 64, 64).index_fill(3, torch.tensor([63]), -1e9),
    "all but one": torch.full((8, 8), -1e9).masked_fill(torch.eye(8).bool(), 1.0),
}
LARGE = {
    "one element": torch.cat([torch.randn(99), torch.tensor([-51234.0])]),
    "two elements": torch.cat([torch.randn(98), torch.tensor([-51234.0, -48000.0])]),
    "all": torch.randn(1000) * 1e5,
    "half": (torch.randn(1000) * 1e5).relu(),
    "constant": torch.full((64,), 1e9),
    "large beside the fill": torch.where(MASK, -1e9, torch.randn(8, 8) * 1e8),
}


def found(x: Tensor) -> set[str]:
    """The checks that find fault with a tensor that the second of two blocks returns, if the first is healthy."""
    stats = {name: resolve([measure(y)])[0] for name, y in (("a", torch.randn(64)), ("b", x))}
    dtype = str(x.dtype).removeprefix("torch.")
    rows = [Row({"fqn": name, "type": "Attend", "dtype": dtype}, one) for name, one in stats.items()]
    activations, inventory = Report("activations", "Net", (), rows), Report("inventory", "Net", (), ())
    measured = Measurements(activations=activations, inventory=inventory)
    return {one.check for one in judge([ExplodingActivations(), Float16Overflow()], measured).findings}


@pytest.mark.parametrize("name", MASKED)
def test_a_masks_fill_is_neither_growth_nor_overflow(name: str) -> None:
    assert resolve([measure(MASKED[name])])[0].filled and found(MASKED[name]) == set()


@pytest.mark.parametrize("name", LARGE)
def test_large_values_are_found(name: str) -> None:
    assert not resolve([measure(LARGE[name])])[0].filled and "HK016" in found(LARGE[name])
