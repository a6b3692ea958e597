"""Reports compared: exactly what is exact, statistics within tolerance, and what has no counterpart is told."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import hookcli
from hookcli.diff.rows import beyond, diff, diff_reports, unlike
from hookcli.diff.tolerance import Tolerance
from hookcli.errors import UsageError
from hookcli.table import Column, Report, Row, Skipped, TensorStats, document


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def see(model: nn.Module, probe: str, **settings: Any) -> Report:
    return hookcli.capture(model, X, [probe], **settings)[0]


def by_name(report: Report) -> dict[str, Row]:
    return {row.fqn: row for row in report.rows}


@pytest.mark.parametrize("probe", ["shapes", "inputs", "activations", "grads"])
def test_a_report_equals_itself_through_a_file(probe: str) -> None:
    a = see(Net(), probe)
    b = Report.from_dict(document([a])["reports"][0])
    report = diff(a, b, Tolerance(0, 0))
    assert report.totals["beyond"] == 0 and report.totals["compared"] == len(a.rows) and not beyond([report])
    assert [row["times"] for row in report.rows] == [0.0] * len(a.rows)


def test_what_changed_is_named_where_it_begins() -> None:
    other = Net()
    with torch.no_grad():
        other.body[1].weight[2] = 1.5
    report = diff(see(Net(), "activations"), see(other, "activations"))
    first = by_name(report)["body.1"]
    assert "First difference: body.1" in report.totals["verdict"] and first["beyond"]
    assert by_name(report)["body.0"].get("beyond") is None and by_name(report)["body"]["beyond"]
    assert first["times"] > 1 and first["figure"] in ("std", "l2", "max", "min") and "→" in first["differs"]
    assert report.findings[0].severity == "error"


def test_shapes_parameters_and_macs_are_exact_whatever_the_tolerance() -> None:
    other = Net()
    other.head = nn.Linear(4, 3)
    report = diff(see(Net(), "shapes"), see(other, "shapes"), Tolerance(1e9, 1e9))
    assert {row.fqn for row in report.rows if row.get("beyond")} == {"", "head"}
    assert by_name(report)["head"]["times"] == math.inf and "params 10 → 15" in by_name(report)["head"]["differs"]


def test_where_the_number_of_elements_changed_only_counts_are_compared() -> None:
    def made(shape: list[int], stats: TensorStats) -> Report:
        columns = (Column("fqn", "Layer"), Column("shape", "Shape"))
        return Report("activations", "net", columns, [Row({"fqn": "a", "shape": shape, "dtype": "float32"}, stats)])

    a = made([2, 2], TensorStats(4, 0.0, 1.0, -1.0, 1.0, 2.0, zeros=1))
    b = made([2, 3], TensorStats(6, 9.0, 8.0, -7.0, 60.0, 50.0, zeros=4, nan=1))
    [row] = diff(a, b).rows
    assert row["differs"] == "nan 0 → 1, shape 2x2 → 2x3 and 1 more"
    same = made([4], TensorStats(4, 9.0, 8.0, -7.0, 60.0, 50.0, zeros=4))
    assert diff(a, same).rows[0]["differs"] == "shape 2x2 → 4, max 1.000 → 60.00 and 5 more"


def test_tolerances_apply() -> None:
    other = Net()
    with torch.no_grad():
        other.head.weight.mul_(1 + 1e-3)
    a, b = see(Net(), "activations"), see(other, "activations")
    assert diff(a, b).totals["beyond"] == 2 and diff(a, b, Tolerance(rtol=1e-2)).totals["beyond"] == 0
    assert diff(a, b, Tolerance(rtol=0, atol=1)).totals["beyond"] == 0


def test_a_dtype_that_is_the_runs_own_is_no_difference() -> None:
    a, b = see(Net(), "activations"), hookcli.capture(Net().double(), X.double(), ["activations"])[0]
    report = diff(a, b)
    assert report.totals["beyond"] == 0 and report.meta["dtype"] == "float32 → float64"
    mixed = replace(b, meta={**b.meta, "dtype": "float32"})
    assert "dtype float32 → float64" in by_name(diff(a, mixed))["head"]["differs"]


def test_a_lost_gradient_is_beyond_with_its_reason() -> None:
    frozen = Net()
    frozen.body[0].bias.requires_grad_(False)
    report = diff(see(Net(), "grads"), see(frozen, "grads"), Tolerance(1, 1))
    row = by_name(report)["body.0.bias"]
    assert row["differs"] == "measured in A only: frozen (requires_grad=False)" and row["beyond"]
    back = by_name(diff(see(frozen, "grads"), see(Net(), "grads"), Tolerance(1, 1)))["body.0.bias"]
    assert back["differs"].startswith("measured in B only") and report.totals["beyond"] == 1


def test_structures_that_differ() -> None:
    other = Net()
    other.trunk = other.body
    other.extra = nn.Identity()
    other.forward = lambda x: other.extra(other.head(other.trunk(x).mean((2, 3))))  # type: ignore[method-assign]
    del other.body
    report = diff(see(Net(), "activations"), see(other, "activations"))
    found = by_name(report)
    assert found["body.0"]["change"] == "renamed: trunk.0" and found["extra"]["change"] == "added"
    assert report.totals["renamed"] == 4 and report.totals["added"] == 1 and report.totals["beyond"] == 0
    assert [row.fqn for row in report.rows][-2:] == ["head", "extra"]  # where it stands in B


def test_what_is_not_finite_on_one_side() -> None:
    other = Net()
    with torch.no_grad():
        other.head.bias[0] = math.nan
    report = diff(see(Net(), "activations"), see(other, "activations"), Tolerance(1e9, 1e9))
    assert "nan 0 → 2" in by_name(report)["head"]["differs"]


def test_gradients_that_are_rounding_alone_may_round_in_another_way() -> None:
    """Of a bias before batch normalization: zero but for noise, which differs between float32 and float64."""
    model = Net().train()
    a, b = see(model, "grads"), hookcli.capture(copy.deepcopy(model).double(), X.double(), ["grads"])[0]
    noise = next(row for row in a.rows if row.fqn == "body.0.bias")
    assert noise.stats is not None and noise.stats.l2 < 1e-4
    assert diff(a, b).totals["beyond"] == 0 and diff(a, b, Tolerance(rtol=1e-3)).totals["beyond"] > 0


def test_figures_of_other_probes_are_compared_by_their_type() -> None:
    columns = (Column("fqn", "Layer"), Column("share", "Share"), Column("units", "Units"))

    def made(share: float, units: int) -> Report:
        return Report("dead", "net", columns, [Row({"fqn": "a", "share": share, "units": units, "note": "x"})])

    assert diff(made(0.5, 3), made(0.505, 3), Tolerance(0.02)).totals["beyond"] == 0
    assert diff(made(0.5, 3), made(0.55, 3), Tolerance(0.02)).rows[0]["times"] == pytest.approx(5)
    assert diff(made(0.5, 3), made(0.5, 4), Tolerance(1.0)).rows[0]["differs"] == "units 3 → 4"
    assert diff(made(math.nan, 3), made(math.nan, 3)).totals["beyond"] == 0


def test_what_can_not_be_compared() -> None:
    shapes, activations, trace = (see(Net(), probe) for probe in ("shapes", "activations", "trace"))
    with pytest.raises(UsageError, match="A is a report of shapes, B of activations"):
        diff(shapes, activations)
    with pytest.raises(UsageError, match="reports of trace can't be compared"):
        diff(trace, trace)
    with pytest.raises(UsageError, match="A holds reports of shapes, activations, B a report of shapes"):
        diff_reports([shapes, activations], [shapes], Tolerance())
    assert len(diff_reports([shapes, activations], [activations, shapes], Tolerance())) == 2


def test_runs_that_differ_are_told() -> None:
    a = see(Net(), "activations", info={"seed": 0})
    b = replace(a, meta={**a.meta, "seed": 5, "complete": False})
    assert unlike(diff(a, b)) == "the runs differ: seed 0 → 5, b is incomplete"
    assert unlike(diff(a, a)) == ""


def test_calls_of_one_module_are_told_apart() -> None:
    def made(*means: float) -> Report:
        stats = [TensorStats(10, mean, 1.0, -1.0, 1.0, 3.0) for mean in means]
        rows = [Row({"fqn": "relu", "type": "ReLU", "call": n, "path": ""}, s) for n, s in enumerate(stats)]
        return Report("activations", "net", (Column("fqn", "Layer"),), rows, skipped=(Skipped("x", "never called"),))

    report = diff(made(0.0, 0.0), made(0.0, 9.0, 0.0))
    assert [bool(row.get("beyond")) for row in report.rows] == [False, True, True]
    assert report.rows[2]["differs"] == "measured in B only" and "call 1" in report.totals["verdict"]
    assert report.skipped == [Skipped("x", "never called")]
