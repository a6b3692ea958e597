"""The steps of a program are counted once, whatever the number of its models and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from observing import Seen
from support import swept
from torch import nn

from hookcli.commands.show import remarks
from hookcli.record.file.reading import read_record
from hookcli.record.file.views.query import Query
from hookcli.record.model_recording import ModelRecording
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import RecordingPlan


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)


def parts_of_one_optimizer() -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1)]
    optimizer = sgd(*models)
    for _ in range(5):
        nn.Sequential.forward(models, torch.ones(1, 2)).sum().backward()  # type: ignore[arg-type]
        optimizer.step()


def encoder_and_decoder() -> None:
    encoder, decoder = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [sgd(encoder), sgd(decoder)]
    for _ in range(5):
        decoder(encoder(torch.ones(1, 2))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def gan() -> None:
    """Two steps of the critic for one of the maker."""
    maker, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    g, c = sgd(maker), sgd(critic)
    for number in range(6):
        c.zero_grad()
        critic(torch.ones(3, 2)).mean().backward()
        c.step()
        if number % 2:
            g.zero_grad()
            critic(maker(torch.ones(3, 2))).mean().backward()
            g.step()


def folds() -> None:
    for _ in range(3):
        model = nn.Linear(2, 1)
        optimizer = sgd(model)
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        del optimizer


def one_after_the_other(first: int, keep: bool) -> int:
    """Another optimizer takes the same parameters over, as a schedule from SGD to Adam does."""
    model, kept = nn.Linear(2, 1), []
    for kind, steps in ((torch.optim.SGD, first), (torch.optim.Adam, 4), (torch.optim.SGD, 2)):
        optimizer = kind(model.parameters(), lr=0.1)
        kept += [optimizer] * keep
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    return first + 6


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("first", [1, swept(2), 3])
@pytest.mark.parametrize("every", [swept(1), 100])
def test_an_optimizer_that_takes_over_makes_steps_of_its_own(first: int, keep: bool, every: int) -> None:
    observer = Observer(RecordingPlan(every=every), Seen()).start()
    try:
        steps = one_after_the_other(first, keep)
    finally:
        observer.stop()
    totals = observer.totals()
    assert (totals["program_steps"], [model["steps"] for model in totals["models"]]) == (steps, [steps])


PROGRAMS: list[tuple[Callable[[], None], int]] = [
    (parts_of_one_optimizer, 5),
    (encoder_and_decoder, 5),
    (gan, 6),
    (folds, 12),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("program", "steps"), PROGRAMS)
@pytest.mark.parametrize("every", [swept(1), 100])
def test_steps_are_not_multiplied_by_models(program: Callable[[], None], steps: int, every: int) -> None:
    observer = Observer(RecordingPlan(every=every), Seen()).start()
    try:
        program()
    finally:
        observer.stop()
    assert observer.totals()["program_steps"] == steps


@pytest.mark.sweep
def test_the_headline_of_a_record_has_the_steps_of_the_program(tmp_path: Path) -> None:
    """And `show` the last step that is whole: the critic's last step has the maker's loss alone."""
    maker, critic = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 1)
    both, losses = nn.ModuleList([maker, critic]), []
    g, c = sgd(maker), sgd(critic)
    with ModelRecording(both, every=1, output=tmp_path / "gan.run.jsonl"):
        for _ in range(3):
            c.zero_grad()
            loss = critic(torch.randn(3, 2)).mean()
            loss.backward()
            c.step()
            losses.append(loss.item())
            g.zero_grad()
            (critic(maker(torch.randn(3, 2))).mean() * 100).backward()
            g.step()
    record = read_record(tmp_path / "gan.run.jsonl")
    assert remarks(record)[0].startswith("ModuleList: 3 steps of 2 models in ")
    assert [(p.step, p.complete) for p in record.entries if p.model == "Linear"][-2:] == [(2, True), (3, False)]
    (shown,) = Query(model="Linear").within(record).reports()
    assert (shown.meta["step"], shown.meta["losses"]) == (2, losses[-1:])
    (chart,) = Query(model="Linear", over_time=".").within(record).reports()
    assert [row["step"] for row in chart.rows] == [0, 1, 2] and [row["loss"] for row in chart.rows] == losses
    assert [(left.fqn, "not finished" in left.reason) for left in chart.skipped] == [("Linear, step 3", True)]
    (shown,) = Query(model="Linear", step=3).within(record).reports()
    assert shown.meta["complete"] is False
