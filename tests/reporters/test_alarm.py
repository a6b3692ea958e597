"""The colour of the first line: red for errors, yellow for warnings alone, none for what is not a fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from commands.shown import on_terminal
from torch import nn

import hookcli
from hookcli.reporters.table import TableReporter
from hookcli.table import Report, Row, TensorStats
from hookcli.table.columns import columns_named
from hookcli.table.grouping import View, shown
from hookcli.table.marks import alarm, with_verdict

RED, YELLOW = "\x1b[1;31m", "\x1b[1;33m"
FINE, ZERO = TensorStats(16, 0.5, 1.0, -2.0, 3.0, 4.0), TensorStats(16, 0.0, 0.0, 0.0, 0.0, 0.0, zeros=16)
LOST = TensorStats(16, 0.5, 1.0, -2.0, 3.0, 4.0, nan=2)


def report(*stats: TensorStats, **fields: Any) -> Report:
    rows = [Row({"fqn": f"block{n}.part", "dtype": "float32"}, one) for n, one in enumerate(stats)]
    return Report("activations", "net", columns_named("fqn", "mean", "note"), rows, **fields)


@pytest.mark.parametrize(
    ("stats", "severity"),
    [
        ((FINE, FINE), ""),
        ((FINE, ZERO), "warning"),
        ((FINE, TensorStats(16, 2.0, 0.0, 2.0, 2.0, 8.0)), "warning"),  # constant
        ((ZERO, LOST), "error"),
    ],
)
def test_it_is_that_of_the_worst_fault(stats: tuple[TensorStats, ...], severity: str) -> None:
    judged = with_verdict(report(*stats))
    assert alarm(judged) == severity
    for depth in (None, 1):  # at which a row hides the faulty one
        view = View(width=90, height=40, color=True, depth=depth)
        text = TableReporter().render([shown(judged, view)], view)
        assert text.startswith({"error": RED, "warning": YELLOW}.get(severity, "\x1b[1m")), text


def test_a_run_that_failed_and_a_lost_gradient_are_errors() -> None:
    assert alarm(with_verdict(report(ZERO, meta={"complete": False}))) == "error"
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net.register_parameter("lost", nn.Parameter(torch.ones(4)))
    lost = with_verdict(hookcli.capture(net, torch.randn(2, 4), ["grads"])[0])
    assert "got no gradient" in lost.totals["verdict"] and alarm(lost) == "error"


def test_a_records_verdict_on_something_else_is_not_taken_for_a_warning() -> None:
    assert alarm(report(ZERO, totals={"verdict": "the loss jumped at step 7"})) == "error"
    assert alarm(report(FINE, totals={"verdict": "Peak at batch 2"})) == ""


def test_findings_that_are_warnings_alone_are_yellow(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import torch\nfrom torch import nn\n\n\ndef net():\n    torch.manual_seed(0)\n"
    code += "    layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)]\n"
    code += "    with torch.no_grad():\n        layers[0].bias[:12] = layers[2].bias[:12] = -99\n"
    (tmp_path / "net.py").write_text(f"{code}    return nn.Sequential(*layers)\n")
    told = on_terminal(100, "check", "net.py:net", "-i", "8x16")
    assert told.startswith(f"{YELLOW}2 warnings; worst: "), told
