"""Parameters and buffers of two models: exact distances, also where no output tells of them."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from support import untouched
from torch import Tensor, nn

from hookcli.diff.tolerance import Tolerance
from hookcli.engine.lockstep import Side, compare
from hookcli.reporters.markdown import MarkdownReporter
from hookcli.reporters.table import TableReporter
from hookcli.table import Report, Row
from hookcli.table.grouping import View


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)).eval()


def compared(a: nn.Module, b: nn.Module, **settings: float) -> Report:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    with untouched(a), untouched(b):
        return compare(Side(a, x), Side(b, x), tolerance=Tolerance(**settings))


def weights(report: Report) -> dict[str, Row]:
    return {row.fqn: row for row in report.rows if row["kind"] == "weight"}


def table(report: Report) -> str:
    return TableReporter().render([report], View())


def test_what_is_equal_is_counted() -> None:
    """NaN equals NaN, as elsewhere in a comparison."""
    a, b = net(), net()
    for model in (a, b):
        model[1].running_mean[0] = math.nan
    report = compared(a, b, rtol=0)
    assert not weights(report) and report.totals["weights"] == "9 parameters and buffers equal"


def test_a_small_change_is_named_though_it_is_within_tolerance() -> None:
    a = net()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b[0].weight[3, 2] += 1e-4
    report = compared(a, b)
    (row,) = weights(report).values()
    exact = (a[0].weight.double() - b[0].weight.double()).norm() / a[0].weight.double().norm()
    assert row.fqn == "0.weight" and row["type"] == "Parameter" and row["shape"] == [16, 8]
    assert row["max_abs"] == pytest.approx(1e-4, rel=1e-3) and row["rel_l2"] == pytest.approx(exact.item(), rel=1e-5)
    assert not row.get("beyond") and report.totals["verdict"].startswith("Within tolerance; furthest apart: ")
    line = (
        f"1 of 9 parameters and buffers differ, within tolerance; furthest apart: 0.weight, relative error {exact:.2g}"
    )
    assert report.totals["weights"] == line
    for shown in (table(report), MarkdownReporter().render([report], View())):
        assert "Parameter" not in shown and line in " ".join(shown.split())


@pytest.mark.parametrize("what", ["dead", "counter"])
def test_a_change_that_no_output_shows_counts(what: str) -> None:
    """Of a unit that is dead, and of a buffer that evaluation does not read."""
    a, b = net(), net()
    with torch.no_grad():
        for model in (a, b):
            model[1].weight[0], model[1].bias[0] = 0, -1
        if what == "dead":
            b[3].weight[:, 0] += 1
        else:
            b[1].num_batches_tracked += 3
    report = compared(a, b)
    name = {"dead": "3.weight", "counter": "1.num_batches_tracked"}[what]
    assert report.totals["beyond"] == 0 and [n for n, row in weights(report).items() if row["beyond"]] == [name]
    assert report.totals["verdict"].startswith(f"First difference: {name}, ")
    assert report.findings[0].severity == "error" and report.findings[0].fqn == name
    order = [row.fqn for row in report.rows]
    assert order[order.index(name) - 1] == name.partition(".")[0], "it stands below its module"
    assert {"dead": "Parameter", "counter": "Buffer"}[what] in table(report)


def test_another_dtype_is_rounding() -> None:
    a = net()
    report = compare(Side(a, torch.ones(4, 8)), Side(copy.deepcopy(a).bfloat16(), torch.ones(4, 8).bfloat16()))
    found = weights(report)
    assert {"0.weight", "0.bias", "3.weight", "3.bias"} == found.keys()
    assert all(0 < row["rel_l2"] < 2**-8 and row["dtype"] == "float32 → bfloat16" for row in found.values())
    assert not any(row.get("beyond") for row in found.values()) and "Parameter" not in table(report)


def test_another_initialisation_is_one_line_for_people() -> None:
    def deep(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        return nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))

    report = compared(deep(0), deep(1))
    assert len(weights(report)) == 12 and all(row["beyond"] for row in weights(report).values())
    worst = max(weights(report).values(), key=lambda row: row["times"])
    line = f"12 of 12 parameters and buffers differ, 12 beyond tolerance; furthest apart: {worst.fqn}, relative error "
    assert report.totals["weights"].startswith(line)
    assert "Parameter" not in table(report)


def test_renamed_modules_other_shapes_and_what_one_side_lacks() -> None:
    a = nn.Sequential(nn.Linear(8, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    b = nn.Sequential(copy.deepcopy(a[0]), nn.Sequential(nn.Linear(4, 2, bias=False)))
    with torch.no_grad():
        b[1][0].weight.copy_(a[1][1].weight)
    found = weights(compared(a, b))
    assert {name: row["change"] for name, row in found.items()} == {"1.1.bias": "removed"}
    assert {name: row["change"] for name, row in weights(compared(b, a)).items()} == {"1.1.bias": "added"}
    wide = nn.Sequential(copy.deepcopy(a[0]), nn.Sequential(nn.ReLU(), nn.Linear(4, 3)))
    assert weights(compared(a, wide))["1.1.weight"]["differs"] == "shape 2x4 → 3x4"


def test_they_are_compared_as_they_are_before_the_run() -> None:
    class Counts(nn.Module):
        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += self.step
            return x

    assert not weights(compared(Counts(1), Counts(2)))


def test_select_narrows_them() -> None:
    x = torch.ones(2, 8)
    report = compare(Side(net(), x), Side(net(1), x), select=lambda fqn, module: fqn == "3")
    assert weights(report).keys() == {"3.weight", "3.bias"}


@pytest.mark.parametrize(("number", "shown"), [(8, True), (9, False)])
def test_a_table_has_rows_of_up_to_eight_weights_beyond_tolerance(number: int, shown: bool) -> None:
    """For more, as after another initialization, one line says more than their rows."""
    a = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(10)))
    b = copy.deepcopy(a)
    with torch.no_grad():
        for layer in b[:number]:
            layer.weight.mul_(2)
    report = compared(a, b)
    assert [row.get("aside", False) for row in weights(report).values()] == [not shown] * number
    assert report.totals["weights"].startswith(f"{number} of 10 parameters and buffers differ, {number} beyond")


def test_a_buffer_that_one_side_lacks_is_told_though_all_outputs_are_identical() -> None:
    a = net()
    b = copy.deepcopy(a)
    assert compared(a, b).totals["verdict"] == "Identical, bit for bit"
    b[0].register_buffer("extra", torch.ones(1))
    assert not compared(a, b).totals["verdict"].startswith("Identical")
