"""What a part of a capability may ask of the recorder: steps that are not recorded, a look at them, and an end."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch
from observing import observed, observing
from torch import nn

from hookcli.record.observe.ending import StopProgram
from hookcli.record.observe.parts import BegunStep, RecordedRun, RecorderPart, StepPart, StepView
from hookcli.record.observe.steps import open_steps


class Looks(RecorderPart):
    """Wants some steps, has some recorded, and ends the program in one of them."""

    def __init__(self, wanted: Collection[int], kept: Collection[int] = (), ended: int | None = None) -> None:
        self.wanted, self.kept, self.ended = wanted, kept, ended
        self.seen: dict[int, list[float]] = {}
        self.sorts: dict[int, dict[str, int]] = {}

    def begin_run(self, run: RecordedRun) -> None:
        self.run = run

    def wants(self, step: int) -> bool:
        return step in self.wanted

    def begin_step(self, step: BegunStep) -> StepPart:
        return LooksAtStep(self)


class LooksAtStep(StepPart):
    def __init__(self, of_run: Looks) -> None:
        self.of_run = of_run

    def look(self, step: StepView, *, over: bool) -> None:
        if not over:
            return
        assert (step.phase, step.forwards, step.observed_forwards) == ("train", 1, 1)
        self.of_run.seen[step.number] = step.losses(0)
        self.of_run.sorts[step.number] = {one.what: len(one.seen) for one in step.measured()}
        if step.number in self.of_run.kept:
            step.keep()
        if step.number == self.of_run.ended:
            self.of_run.run.end_program()


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch):
    def added(part: RecorderPart) -> None:
        monkeypatch.setattr(open_steps, "make_recorders", lambda plan: {"ours": part})

    return added


def training() -> list[float]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.sweep
def test_steps_that_a_part_wants_are_observed_and_recorded_only_if_it_keeps_them(add) -> None:
    part = Looks(wanted={2, 3}, kept={3})
    add(part)
    seen = observed(training, every=100)
    torch.manual_seed(0)
    losses = training()
    assert part.seen == {step: [losses[step]] for step in (0, 2, 3)}
    assert seen.steps() == [0, 3] and seen.ran["Sequential"].steps == 6
    assert part.sorts[2] == {"output": 4, "gradient": 4, "parameter gradient": 4}


def test_a_part_ends_the_program_in_the_step_at_which_it_looks(add) -> None:
    add(part := Looks(wanted=range(6), ended=2))
    with observing(every=100), pytest.raises(StopProgram) as stopped:
        training()
    assert stopped.value.code == 1 and [*part.seen] == [0, 1, 2]
