"""What a baseline keeps, and what has changed since."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diff.baselines import Net, changes, kept, run, through_a_file
from torch import nn

import hookcli
from hookcli.diff.baseline import text_of
from hookcli.diff.tolerance import Tolerance, excess
from hookcli.engine.run_info import describe_run
from hookcli.probes.parameters import SettingsProbe
from hookcli.table import Report, TensorStats, strict
from hookcli.table.columns import DECLARED


def test_a_run_equals_its_baseline(tmp_path: Path) -> None:
    assert changes(through_a_file(run(Net()), tmp_path), run(Net())) == []


def test_a_baseline_keeps_what_it_compares(tmp_path: Path) -> None:
    """All figures within its rounding: 5 parts in a million."""
    reports = run(Net())
    kept = {report.probe: report for report in through_a_file(reports, tmp_path).reports}
    for report in reports:
        assert len(report.rows) == len(kept[report.probe].rows) > 0
        for row, other in zip(report.rows, kept[report.probe].rows, strict=True):
            for key, value in row.flat().items():
                if key in ("fqn", "type", "kind") or (DECLARED[key].compared and value is not None):
                    wanted = pytest.approx(value, rel=5e-6) if isinstance(value, float) else strict(value)
                    assert other[key] == wanted, key


def test_the_text_is_stable_and_a_line_a_row(tmp_path: Path) -> None:
    first, again = (text_of([kept(run(Net()))]) for _ in range(2))
    assert first == again
    lines = first.splitlines()
    assert sum('"fqn"' in line for line in lines) == 3 + 4 + 4 + 4 and max(map(len, lines)) < 260
    conv = next(line for line in lines if '"fqn": "conv"' in line)
    keys = list(json.loads(conv.strip().rstrip(",")))
    assert keys[:2] == ["fqn", "type"] and keys[2:] == sorted(keys[2:])
    assert not any(word in first for word in ("seconds", "index", "nan"))
    assert json.loads(first)["schema"] == 1
    changed = Net()
    changed.fc = nn.Linear(4, 2, bias=False)
    before, after = set(lines), set(text_of([kept(run(changed))]).splitlines())
    assert all('"fc' in line or '"fqn": ""' in line or "conv." in line for line in before ^ after), "only what changed"


CHANGES: dict[str, tuple[Callable[[Net], Any], list[str]]] = {
    "a layer": (
        lambda net: setattr(net, "fc", nn.Linear(4, 3)),
        ["out_features 2 → 3; changed as a result: "],
    ),
    "a type": (lambda net: setattr(net, "act", nn.GELU()), ["changed: ReLU → GELU; changed as a result: "]),
    "a stride": (
        lambda net: setattr(net.conv, "stride", (2, 1)),
        ["stride 1 → 2x1; changed as a result: 2 shapes, "],
    ),
    "a new layer": (
        lambda net: setattr(net, "act", nn.Sequential(net.act, nn.Linear(6, 6))),
        [
            "replaced by a Sequential; renamed to act.0",
            "added; changed as a result: 1 shape, ",
        ],
    ),
    "an initialisation": (
        lambda net: net.conv.weight.data.mul_(1.2),
        ["its output changed: "],
    ),
    "a frozen parameter": (
        lambda net: net.conv.bias.requires_grad_(False),
        ["trainable parameters 112 → 108; changed as a result: 1 shape"],
    ),
    "a lost gradient": (
        lambda net: setattr(net.act, "forward", lambda y: y.detach().relu()),
        ["no longer gets a gradient (no gradient reached it), nor does 1 more"],
    ),
    "NaN": (
        lambda net: net.fc.bias.data.fill_(math.nan),
        ["its output changed: nan 0 → 4, "],
    ),
    "a scale": (
        lambda net: net.fc.register_forward_hook(lambda m, i, y: y * 2),
        ["its output changed: "],
    ),
    "a parameter of one's own": (
        lambda net: net.act.register_parameter("slope", nn.Parameter(torch.ones(3))),
        ["parameters 0 → 3; changed as a result: 1 shape"],
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changed_is_named(tmp_path: Path, what: str) -> None:
    baseline, changed = through_a_file(run(Net()), tmp_path), Net()
    CHANGES[what][0](changed)
    found = changes(baseline, run(changed))
    assert len(found) == len(CHANGES[what][1]), found
    for line, text in zip(found, CHANGES[what][1], strict=True):
        assert line.startswith(text), (text, found)


SETTINGS: dict[str, tuple[nn.Module, nn.Module, str]] = {
    "momentum": (nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=0.01), "momentum 0.1 → 0.01"),
    "eps": (nn.LayerNorm(4), nn.LayerNorm(4, eps=1e-6), "eps 1e-05 → 1e-06"),
    "p": (nn.Dropout(0.1), nn.Dropout(0.2), "p 0.1 → 0.2"),
    "dropout": (nn.LSTM(4, 4, 2), nn.LSTM(4, 4, 2, dropout=0.1), "dropout 0.0 → 0.1"),
    "averages": (
        nn.BatchNorm1d(4),
        nn.BatchNorm1d(4, track_running_stats=False),
        "track_running_stats True → False",
    ),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_settings_that_show_in_no_figure_are_named(what: str, tmp_path: Path) -> None:
    """In eval mode, with weights that are the same."""

    def seen(part: nn.Module) -> list[Report]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), part).eval()
        for p in model.parameters():
            nn.init.constant_(p, 0.5)
        x = torch.ones(2, 4)
        info = {**describe_run(model, x), "seed": 0}
        return hookcli.capture(model, x, [SettingsProbe(), "shapes"], info=info, name="Net")

    before, after, said = SETTINGS[what]
    assert changes(through_a_file(seen(before), tmp_path), seen(after)) == [said]
    assert changes(through_a_file(seen(before), tmp_path), seen(before)) == []


def test_attributes_of_other_classes_count_where_they_are_declared() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads, self.calls, self.scale, self.hook = 4, 17, 0.5, print

        __constants__ = ("scale", "hook")

        def extra_repr(self) -> str:
            return f"heads={self.heads}"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Breaks(Own):
        def extra_repr(self) -> str:
            raise AttributeError("nobody ever printed it")

    model = nn.Sequential(Own(), Breaks(), nn.Conv1d(1, 2, 3))
    [report] = hookcli.capture(model, torch.ones(1, 1, 8), [SettingsProbe()])
    assert [row["settings"] for row in report.rows[:2]] == [{"heads": 4, "scale": 0.5}, {"scale": 0.5}]
    assert report.rows[2]["settings"]["kernel_size"] == (3,) and "training" not in report.rows[2]["settings"]


def test_a_gradient_that_is_noise_may_have_other_zeros() -> None:
    """That of a bias before a normalization is rounding: which elements are exactly zero is chance."""
    reference = TensorStats(numel=8, mean=0.0, std=1e-7, min=-1e-7, max=1e-7, l2=3e-7, zeros=2)
    assert excess("zeros", reference, replace(reference, zeros=0), 3.5e-3, 1e-5) <= 1
    assert excess("zeros", reference, replace(reference, zeros=0), 3.5e-3, 1e-9) > 1


def test_tolerances_are_the_callers(tmp_path: Path) -> None:
    baseline, moved = through_a_file(run(Net()), tmp_path), Net()
    with torch.no_grad():
        moved.conv.weight.mul_(1.01)
    assert changes(baseline, run(moved)) and not changes(baseline, run(moved), Tolerance(rtol=0.1))
