"""Steps that wait for what may never come: how many are open at once, and what they keep alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from observing import observing
from torch import Tensor, nn


@pytest.mark.sweep
def test_at_most_eight_steps_are_open_and_the_oldest_is_recorded_first() -> None:
    models = [nn.Linear(2, number) for number in range(1, 13)]
    outputs: list[Tensor] = []
    with observing() as seen:
        for number, model in enumerate(models, 1):
            outputs.append(model(torch.ones(1, 2)))  # whose graph stays
            assert len(seen.recorded) == max(0, number - 8)
        outputs[11].sum().backward()
        assert [w.model for w in seen.recorded] == ["Linear", *(f"Linear #{n}" for n in (2, 3, 4, 12))]
    assert [len(w.losses) for w in seen.recorded] == [0, 0, 0, 0, 1] + [0] * 7
    assert all(w.complete for w in seen.recorded)  # none has an optimizer that they would wait for
    assert [w.reports[0].rows[0]["shape"] for w in seen.recorded[:4]] == [[1, n] for n in range(1, 5)]


@pytest.mark.sweep
def test_steps_of_optimizers_that_never_step_are_recorded_as_unfinished() -> None:
    models = [nn.Linear(2, 1) for _ in range(10)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    with observing() as seen:
        for model in models:
            model(torch.ones(1, 2)).sum().backward()
        assert len(seen.recorded) == 2 and not any(w.complete for w in seen.recorded)
        assert seen.recorded[0].notes == ["the last step was never completed"]
        for optimizer in optimizers:
            optimizer.step()
    assert [w.complete for w in seen.recorded] == [False] * 2 + [True] * 8


def test_open_steps_keep_no_more_than_eight_models_alive() -> None:
    alive, outputs = [], []
    with observing():
        for _ in range(12):
            model = nn.Sequential(nn.Linear(2, 1), nn.Tanh())
            outputs.append(model(torch.ones(1, 2)))
            alive.append(weakref.ref(model))
            del model
            gc.collect()
            assert sum(ref() is not None for ref in alive) <= 8
