"""Baselines of a small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import hookcli
from hookcli.diff.baseline import Baseline, read_baselines, write_baselines
from hookcli.diff.tolerance import Tolerance
from hookcli.engine.run_info import describe_run
from hookcli.probes.parameters import SettingsProbe
from hookcli.table import Report

PROBES = (SettingsProbe, "shapes", "activations", "grads")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.ReLU()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.act(self.conv(x)).mean((2, 3)))


def run(model: nn.Module, **meta: Any) -> list[Report]:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    probes = [probe if isinstance(probe, str) else probe() for probe in PROBES]
    return hookcli.capture(model, x, probes, info={**describe_run(model, x), "seed": 0, **meta})


def kept(reports: list[Report]) -> Baseline:
    return Baseline.of(reports, reports[0].meta)


def through_a_file(reports: list[Report], folder: Path) -> Baseline:
    write_baselines(str(folder / "base.json"), [kept(reports)])
    return read_baselines(str(folder / "base.json")).of("Net")


def changes(baseline: Baseline, reports: list[Report], tolerance: Tolerance | None = None) -> list[str]:
    return [change.message for change in baseline.changes(reports, tolerance)]
