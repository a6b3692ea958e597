"""The first module that grew before a loss ran away; and losses of which that is not said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.diverging import first_grown, grown
from hookcli.record.file.reading import Record
from hookcli.record.file.record_lines import StepLosses

STEPS = 14


def drifting(at: int, place: int, times: float) -> nn.Module:
    """A training in which the weight of a layer is multiplied at a step."""
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for step in range(STEPS):
        if step == at:
            with torch.no_grad():
                model[place].weight *= times  # type: ignore[operator]
        x = torch.randn(32, 6)
        optimizer.zero_grad()
        F.mse_loss(model(x)[:, 0], x[:, 0]).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(
    ("at", "place", "times", "said"),
    [(8, 1, 60, "1"), swept(8, 2, 60, "2"), (8, 0, 60, ""), swept(8, 1, 2, ""), swept(1, 1, 60, "")],
)
def test_the_first_module_that_grew_is_named(at: int, place: int, times: float, said: str) -> None:
    text = first_grown(observed(lambda: drifting(at, place, times)).of())
    assert (
        text.startswith(f"the output of {said} grew first: ") and text.endswith(f"at step {at}") if said else not text
    )


class Scaled(nn.Module):
    """A factor for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_updates_that_grow_are_named_unless_they_are_small() -> None:
    def program(times: float) -> nn.Module:
        model = Scaled()
        optimizer = torch.optim.SGD(model.parameters(), 1e-5)
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = 1e-5 * (times if step == 9 else 1)
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        return model

    text = first_grown(observed(lambda: program(5000)).of())
    assert text.startswith("the update of the model grew first: ") and text.endswith("at step 9")
    assert not first_grown(observed(lambda: program(100)).of())


def test_it_is_said_of_losses_that_ran_away_alone() -> None:
    record = Record(Path("none.run.jsonl"), losses=[StepLosses("Net", 0, [1.0, 0.9])])
    assert not grown(record, "Net")
