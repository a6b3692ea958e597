"""The verdict on a recorded training: which finding is the cause of which, and that no broken one reads as passed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from capabilities.learn.test_graphless import always
from capabilities.learn.test_graphless import train as train_blind
from observing import observed
from records import HEADER, end, save
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import StepLosses
from hookcli.record.file.views.query import Query

STEPS = 120


def found(program: Callable[[], object], folder: Path) -> list[tuple[str, str, str]]:
    """The check of each finding in the verdict, its place, and its cause."""
    seen = observed(program, check=True, every=6)
    (name, losses), *_ = seen.every_loss.items()
    lines = [HEADER, *seen.of_parts, *seen.recorded, StepLosses(name, 0, [*losses.values()]), end()]
    record = read_record(save(folder / "run.jsonl", lines))
    (verdict,) = (report for report in Query().within(record).reports() if report.probe == "check")
    return [(one.check, one.fqn, one.cause) for one in verdict.findings]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)
        with torch.no_grad():
            self.first.bias.fill_(-0.5)  # so that most units are dead without an input
            self.first.bias[:4] = 0.5

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.relu(self.first(x)))
        return result


def zeros(scale: float) -> nn.Module:
    """Inputs that are all zero, or as they should be."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(STEPS):
        x = torch.randn(64, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(scale * x), x[:, :4].argmax(1)).backward()
        optimizer.step()
    return model


def kept(losses: list[object] | None) -> nn.Module:
    """Targets around 1,000, as of prices, which are never reached; and a list of losses with their graphs."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-5)
    for _ in range(STEPS):
        x = torch.randn(64, 8)
        loss = F.mse_loss(model(x), 1000 + 10 * x[:, :1])
        losses.append(loss) if losses is not None else None
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def test_what_follows_from_inputs_of_zeros(tmp_path: Path) -> None:
    causes = {check: (fqn, cause) for check, fqn, cause in found(lambda: zeros(0.0), tmp_path)}
    assert causes["HK066"] == ("", "") and "HK057" not in causes
    assert causes["HK010"] == ("relu", "HK066") and causes["HK009"] == ("first", "HK066")


@pytest.mark.parametrize("program", [lambda: zeros(1.0), *map(swept, [lambda: train_blind(lambda step: False)])])
def test_a_training_that_learns_has_no_finding(program: Callable[[], object], tmp_path: Path) -> None:
    assert not found(program, tmp_path)


def test_kept_graphs_are_no_cause_of_a_loss_that_stays(tmp_path: Path) -> None:
    causes = {check: cause for check, _, cause in found(lambda: kept([]), tmp_path)}
    assert {"HK057": "", "HK060": ""}.items() <= causes.items()


def test_a_training_without_any_gradient_has_not_passed(tmp_path: Path) -> None:
    """Though all that was recorded are forwards without gradients."""
    assert ("HK066", "", "") in found(lambda: train_blind(always), tmp_path)
