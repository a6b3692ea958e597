"""A step that never ends, as of a program without optimizer.step(): its passes are counted, and soon cost nothing."""

from __future__ import annotations

import pytest
import torch
from observing import observed, report
from torch import nn

from hookcli.record.observe import passes
from hookcli.record.observe.optimizers.parameters import ParameterRows
from hookcli.record.observe.steps import step

FORWARDS, PASSES = 4, 8


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each backward pass of which gradients were measured."""
    seen: list[None] = []
    take = ParameterRows.take_unclipped

    def taken(self: ParameterRows, scale: torch.Tensor | None) -> None:
        seen.append(None)
        take(self, scale)

    monkeypatch.setattr(ParameterRows, "take_unclipped", taken)
    monkeypatch.setattr(passes, "MOST_FORWARDS", FORWARDS)
    monkeypatch.setattr(step, "MOST_PASSES", PASSES)
    return seen


def program(number: int, losses: list[float], *, ends: bool) -> nn.Module:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses.clear()
    for _ in range(number):
        loss = model(torch.randn(4, 3)).square().mean()
        losses.append(float(loss.detach()))
        loss.backward()
    if ends:
        optimizer.step()
    return model


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("number", [PASSES - 1, 20])
def test_passes_beyond_the_limit_are_only_counted(number: int, ends: bool, measured: list[None]) -> None:
    losses: list[float] = []
    seen = observed(lambda: program(number, losses, ends=ends), probes=("activations", "grads", "updates", "optimizer"))
    recorded = seen.only
    assert len(measured) == min(number, PASSES)
    assert (recorded.forwards, recorded.observed_forwards, recorded.complete) == (number, FORWARDS, ends)
    assert recorded.losses == pytest.approx(losses)
    if ends:
        (group,) = report(recorded, "optimizer").rows
        assert (group["unclipped_grad"] is None) == (number > PASSES)  # what earlier passes left says nothing of it
        assert group["param_grad"] > 0
