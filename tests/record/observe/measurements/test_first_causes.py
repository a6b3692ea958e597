"""A fault in an earlier step comes before the loss that it ruined."""

from __future__ import annotations

from pathlib import Path

import torch
from observing import observed
from records import HEADER, end, save
from torch import nn

from hookcli.record.file.reading import read_record
from hookcli.record.file.record_lines import StepLosses
from hookcli.record.file.views.query import Query


def root_of_equal_rows() -> nn.Module:
    """The gradient of the root is NaN in step 5, where two rows are equal; the loss from step 6 on."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(9):
        x = torch.randn(8, 8)
        if step == 5:
            x[3] = x[4]
        out = model(x)
        optimizer.zero_grad()
        ((out[3] - out[4]).square().sum().sqrt() + out.square().mean()).backward()
        optimizer.step()
    return model


def test_a_gradient_that_was_lost_in_the_step_before_is_the_cause_of_the_loss(tmp_path: Path) -> None:
    seen = observed(root_of_equal_rows, check=True, every=1)
    losses = StepLosses("Linear", 0, [*seen.every_loss["Linear"].values()])
    record = read_record(save(tmp_path / "run.jsonl", [HEADER, *seen.recorded, losses, end()]))
    (verdict,) = [report for report in Query().within(record).reports() if report.probe == "check"]
    first, second = verdict.findings[:2]
    assert (first.check, second.check) == ("HK004", "HK038") and "(step 5)" in first.message
    assert "from step 6 on" in second.message and second.cause == first.name
