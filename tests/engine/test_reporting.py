"""`hookcli.report(model, inputs)`: one run, in Python."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import untouched
from torch import nn

import hookcli
from hookcli.errors import UsageError
from hookcli.table import Report


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.drop(self.norm(self.fc(x)).relu()))
        return out


def measured(page: hookcli.ReportPage, probe: str, kind: str | None = None) -> Report:
    (found,) = [r for r in page.reports if r.probe == probe and (kind is None or r.rows[0]["kind"] == kind)]
    return found


def test_figures_are_those_of_capture_and_nothing_is_left() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(6, 4)
    with untouched(model):
        page = hookcli.report(model, x, loss="sum")
    assert page.error is None and page.reports[0].probe == "check"
    rates = [hookcli.capture(model, x, probes=[name], loss="sum")[0] for name in ("activations", "grads")]
    for report in rates:
        kind = "parameter" if report.probe == "grads" else None
        found = measured(page, report.probe, kind)
        assert report.rows and [row.fqn for row in found.rows] == [row.fqn for row in report.rows]
        assert all(a[key] == b[key] for a, b in zip(found.rows, report.rows, strict=True) for key in ("l2", "min"))
        assert all(row.stats and row.stats.hist for row in found.rows)
    assert {row.fqn for row in measured(page, "grads", "output").rows} == {"", "fc", "norm", "drop", "head"}
    assert {row.fqn: row["l2"] for row in measured(page, "parameters").rows if row["kind"] == "parameter"} == {
        name: pytest.approx(p.detach().double().norm().item(), rel=1e-6) for name, p in model.named_parameters()
    }


def test_tied_and_lazy_parameters_are_listed() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.LazyLinear(2))
    model[1].weight = model[0].weight
    found = measured(hookcli.report(model, torch.ones(2, 4)), "parameters")
    assert [row.fqn for row in found.rows] == ["0.weight"]
    assert {item.fqn: item.reason.partition(":")[0] for item in found.skipped} == {
        "1.weight": "tied to 0.weight",
        "2.weight": "lazy",
        "2.bias": "lazy",
    }


def test_a_failure_is_a_finding() -> None:
    page = hookcli.report(Net(), torch.ones(6, 3), name="mine")
    assert [finding.check for finding in page.reports[0].findings] == ["HK001"] and page.reports[0].model == "mine"
    assert isinstance(page.error, hookcli.errors.ModelError) and all(r.rows for r in page.reports)
    with pytest.raises(UsageError, match=r"report needs an nn\.Module, not int"):
        hookcli.report(3, 3)
    with pytest.raises(TypeError, match="did you mean select"):
        hookcli.report(Net(), torch.ones(6, 4), sleect="HK012")


def test_it_is_saved_as_page_or_json(tmp_path: Path) -> None:
    page = hookcli.report(Net(), torch.randn(6, 4), select=["HK003"])
    page.save(tmp_path / "net.html")
    page.save(str(tmp_path / "net.json"))
    assert "<!doctype html>" in (tmp_path / "net.html").read_text()
    assert len(json.loads((tmp_path / "net.json").read_text())["reports"]) == len(page.reports)
    assert repr(page) == "<ReportPage of Net: check, shapes, flow, activations, grads, grads, settings, parameters>"
    assert repr(hookcli.ReportPage(page.reports[:1])) == "<ReportPage of Net: check>"
    for path, why in (("net.csv", "unknown suffix '.csv'"), ("gone/net.html", "No such file")):
        with pytest.raises(UsageError, match=why):
            page.save(tmp_path / path)


def test_tables_are_imported_without_torch() -> None:
    assert hookcli.table.Report is Report and list(inspect.signature(hookcli.report).parameters)[:2] == [
        "model",
        "inputs",
    ]
    code = "import sys, hookcli; from hookcli.table import Report; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
