"""`hookcli noise-scale` as it is typed: data of several batches, modules, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import require_clear_error

Cli = Callable[..., Any]
NET = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x))

generator = torch.Generator().manual_seed(0)
X = torch.randn(150, 8, generator=generator)
Y = X[:, :3].argmax(1)
loader = DataLoader(TensorDataset(X, Y), 32, shuffle=True)
whole = [(X, Y)]
"""
ON = ("noise-scale", "net.py:Net", "--data")
LOSS = ("--loss", "cross-entropy")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)


def report(cli: Cli, *argv: str) -> dict[str, Any]:
    ran = cli(*argv, "--format", "json", "-q")
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out)["reports"][0])


STOPS = """
from net import Net, X, Y, torch

class Stops(Net):
    \"\"\"Ctrl-C in the forward of this number.\"\"\"

    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0

    def forward(self, x):
        self.calls += len(x) == 5
        if self.calls == self.at:
            raise KeyboardInterrupt
        return super().forward(x)

some = [(X[:60], Y[:60])]
"""


@pytest.mark.parametrize("at", [17, 40])
def test_an_interrupt_has_the_estimate_of_the_micro_batches_until_then(
    cli: Cli, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first pass, as a run on the samples of the first 12 micro-batches of 30 has it (checks take 4 forwards).

    In the second, the estimate of all.
    """
    (tmp_path / "stops.py").write_text(STOPS)
    monkeypatch.syspath_prepend(tmp_path)
    ran = cli(
        *("noise-scale", "stops.py:Stops", "--arg", f"at={at}", "--data", "net.py:whole", *LOSS),
        *("--micro-batch", "5", "--format", "json", "-q"),
    )
    assert ran.code == 130
    [stopped] = json.loads(ran.out)["reports"]
    data = "stops.py:some" if at == 17 else "net.py:whole"
    whole = report(cli, "noise-scale", "net.py:Net", "--data", data, *LOSS, "--micro-batch", "5")
    for row, expected in zip(stopped["rows"], whole["rows"], strict=True):
        keys = ("grad_sq", "grad_variance")
        assert [row[key] for key in keys] == pytest.approx([expected[key] for key in keys], rel=1e-5)
        assert row["noise_scale_error"] is None and row["noise_scale_high"] is None and row["noise_scale_low"] is None
    samples = 60 if at == 17 else 150
    assert stopped["meta"]["complete"] is False and stopped["totals"]["samples"] == samples
    assert f"by the gradients of {samples} samples, without its error: interrupted" in stopped["totals"]["verdict"]


def test_an_interrupt_before_the_eighth_micro_batch_has_no_report(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stops.py").write_text(STOPS)
    monkeypatch.syspath_prepend(tmp_path)
    given = ("noise-scale", "stops.py:Stops", "--arg", "at=8", "--data", "net.py:whole", *LOSS, "--micro-batch", "5")
    ran = cli(*given)
    assert ran.code == 130 and "noise scale is" not in ran.out


def test_shuffled_batches_are_those_of_the_whole_data(cli: Cli) -> None:
    """150 samples in batches of 32, the last of 22: all of them, one by one, have the figures of one batch."""
    one = report(cli, *ON, "net.py:whole", *LOSS, "--micro-batch", "1")
    several = report(cli, *ON, "net.py:loader", "--batches", "all", *LOSS, "--micro-batch", "1")
    assert several["totals"]["samples"] == one["totals"]["samples"] == 150
    for row, expected in zip(several["rows"], one["rows"], strict=True):
        assert (row["grad_sq"], row["grad_variance"]) == pytest.approx(
            (expected["grad_sq"], expected["grad_variance"]), rel=1e-4
        )
    assert several["totals"]["verdict"].startswith("The noise scale is ")
    divided = report(cli, *ON, "net.py:loader", "--batches", "all", *LOSS)
    notes = divided["meta"]["notes"]
    assert "75 micro-batches of 2 samples; ±: standard error (jackknife)" in notes


def test_rows_of_modules(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    given = (*ON, "net.py:whole", *LOSS)
    assert [row["fqn"] for row in report(cli, *given)["rows"]] == ["", "body.0", "body.2", "head"]
    assert [row["fqn"] for row in report(cli, *given, "--depth", "1")["rows"]] == ["", "body", "head"]
    assert [row["fqn"] for row in report(cli, *given, "--match", "head")["rows"]] == ["", "head"]
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli(*given).out.splitlines()
    assert lines[0].startswith("The noise scale is ") and max(map(len, lines)) <= 80
    assert any(line.startswith("(model)") for line in lines)


def test_what_is_missing_or_wrong_is_said(cli: Cli) -> None:
    for argv, said in (
        (("noise-scale", "net.py:Net", "--input", "64x8", "--loss", "sum"), "is a sum over samples"),
        (("noise-scale", "net.py:Net", "--input", "4x8", *LOSS), "only 4 micro-batches of 1 sample: 8 are needed"),
        (("noise-scale", "net.py:Net", "--input", "64x8", *LOSS, "--device", "meta"), "no values to look at"),
        (("noise-scale", "net.py:Net", "--input", "64x8", *LOSS, "--micro-batch", "0"), "--micro-batch"),
    ):
        require_clear_error(cli(*argv), said)
    drawn = report(cli, "noise-scale", "net.py:Net", "--input", "64x8", *LOSS)
    assert any("the input is random" in note for note in drawn["meta"]["notes"])
