"""The verdict of a comparison of two models."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep import Side, compare
from hookcli.registry import load
from hookcli.table import Report
from hookcli.table.grouping import View


class Named(nn.Module):
    """Two layers under names of one's choice."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.names = (first, second)
        for name in self.names:
            self.add_module(name, nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        for name in self.names:
            x = self.get_submodule(name)(x)
        return x


class Zero(nn.Module):
    def __init__(self, sign: float) -> None:
        super().__init__()
        self._sign, self.layer = sign, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        zero: Tensor = self.layer(torch.zeros(2, 2) * self._sign)
        return zero


def compared(a: nn.Module, b: nn.Module) -> Report:
    return compare(Side(a, torch.ones(2, 4)), Side(b, torch.ones(2, 4)))


def first_line(report: Report) -> str:
    return str(load("reporters", "table")().render([report], View()).splitlines()[0])


def test_a_refactoring_is_identical_bit_for_bit() -> None:
    report = compared(Named("first", "second"), Named("stem", "head"))
    assert first_line(report) == report.totals["verdict"] == "Identical, bit for bit (2 modules renamed)"


def test_modules_of_one_side_are_counted() -> None:
    a = nn.Sequential(nn.Linear(4, 4))
    b = nn.Sequential(copy.deepcopy(a[0]), nn.Identity())
    assert first_line(compared(a, b)) == "Identical, bit for bit (1 module only in B)"
    assert first_line(compared(b, a)) == "Identical, bit for bit (1 module only in A)"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_both_have_lost_are_equal_and_not_well(value: float) -> None:
    a, b = Named("first", "second"), Named("first", "second")
    for model in (a, b):
        nn.init.constant_(model.get_parameter("second.bias"), value)
    lost = "both have NaN or Inf, first in second"
    assert first_line(compared(a, b)) == f"Identical, bit for bit; {lost}"
    nn.init.zeros_(b.get_parameter("first.bias"))
    assert re.fullmatch(f"First difference: first .*; {lost}", compared(a, b).totals["verdict"])
    b = Named("first", "second")
    assert "Inf on one side only" in (verdict := compared(a, b).totals["verdict"]) and lost not in verdict


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_zeros_of_another_sign_are_equal_and_not_identical(sign: float) -> None:
    verdict = "Identical, bit for bit" if sign > 0 else "Equal in every value"
    assert compared(Zero(1.0), Zero(sign)).totals["verdict"] == verdict


def test_the_first_difference_is_named_with_its_relative_error() -> None:
    a = Named("first", "second")
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.second.weight *= 1.5
        b.second.bias *= 1.5
    assert first_line(compared(a, b)) == "First difference: second (weight and bias differ), relative error 0.5"
    line = first_line(compared(a.second, b.second))
    assert line == "First difference: (model) (weight and bias differ), relative error 0.5"
    with torch.no_grad():
        a.second.bias *= 1.5
    assert first_line(compared(a, b)).startswith("First difference: second (weight differs), relative error 0.")
    with torch.no_grad():
        b.first.bias += 1
    assert first_line(compared(a, b)).startswith("First difference: first (bias differs), ")
    for width in (None, 80, 200):
        text = load("reporters", "table")().render([compared(a, b)], View(width=width))
        assert re.search(r"Excess: the error divided by its\s+tolerance", text)


def test_a_small_difference_is_within_tolerance_and_the_furthest_is_named() -> None:
    a = Named("first", "second")
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.second.weight *= 1 + 1e-5
    assert compared(a, b).totals["verdict"].startswith("Within tolerance; furthest apart: second")


def test_the_distance_from_zeros_is_told_by_its_size() -> None:
    """A relative error would be infinite, and within an absolute tolerance there is no reason to quote."""
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in (*a.parameters(), *b.parameters()):
            parameter.zero_()
        b.bias.fill_(0.5)
    report = compare(Side(a, torch.ones(2, 3)), Side(b, torch.ones(2, 3)), tolerance=Tolerance(atol=1.0))
    assert report.totals["verdict"] == "Within tolerance; furthest apart: (model), up to 0.5000 where A is all zero"
    assert report.totals["weights"].endswith("furthest apart: bias, up to 0.5000 where A is all zero")
