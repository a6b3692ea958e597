"""Parts of ours that fail change nothing for the program."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import Seen, _run
from support import equal, hooks_on
from torch import nn

from hookcli import registry
from hookcli.probes.base import StatsProbe
from hookcli.record.observe.models.models import ObservedModels
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.optimizer_calls import OptimizerCalls
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps, Snapshot
from hookcli.record.observe.passes import BackwardPasses, Forwards
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.record.observe.steps.open_steps import OpenSteps
from hookcli.record.observe.steps.step import ObservedStep


class Broken(StatsProbe):
    """Fails in the third hook."""

    name = "activations"
    calls = 0

    def attach(self, session: Any) -> None:
        self.session = session
        session.forward(self._fail)

    def _fail(self, event: Any) -> None:
        self.calls += 1
        if self.calls == 3:
            raise ZeroDivisionError("ours")


def training() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return model


def seen_with_failure(seen: Seen, break_it: Callable[[], None] = lambda: None) -> None:
    """One failure is told, and the program comes out the same."""
    alone = _run(training)
    observer = Observer(RecordingPlan(every=1), seen).start()
    break_it()
    try:
        result = _run(training)
    finally:
        observer.stop()
    assert equal(alone, result)


def test_a_probe_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda group, name: Broken if name == "activations" else load(group, name))
    seen = Seen()
    seen_with_failure(seen)
    (error,) = seen.errors
    assert "Broken failed at" in str(error) and "ZeroDivisionError: ours" in str(error) and seen.recorded == []


def test_a_sink_that_takes_no_more() -> None:
    class Full(Seen):
        def step(self, step: Any) -> None:
            if self.recorded:
                raise OSError(28, "No space left on device")
            super().step(step)

    seen = Full()
    seen_with_failure(seen)
    assert len(seen.errors) == 1 == len(seen.recorded)


PLACES: tuple[tuple[type, str], ...] = (
    *((Forwards, name) for name in ("begin", "end", "_find_step")),
    *((OptimizerCalls, name) for name in ("begin", "end")),
    *((OpenSteps, name) for name in ("of", "search", "close")),
    *((ObservedStep, name) for name in ("begin_forward", "end_optimizer_step", "recorded")),
    *((ObservedModels, "find"), (OptimizerSteps, "add"), (OptimizerSteps, "stepped")),
    *((BackwardPasses, "begin"), (BackwardPasses, "end"), (Snapshot, "changes")),
)


@pytest.mark.parametrize(("owner", "method"), PLACES)
def test_a_bug_of_ours_anywhere(owner: type, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("ours")

    seen = Seen()
    seen_with_failure(seen, lambda: monkeypatch.setattr(owner, method, fail))
    assert [str(error) for error in seen.errors] == ["ours"]


def test_after_a_failure_no_hook_is_left_on_the_model() -> None:
    class Failing(Seen):
        def step(self, step: Any) -> None:
            raise OSError(28, "No space left on device")

    seen, model = Failing(), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    before = hooks_on(model)
    observer = Observer(RecordingPlan(every=1), seen).start()
    with torch.no_grad():
        for _ in range(3):
            model(torch.ones(1, 2))
    observer.stop()
    gc.collect()
    assert hooks_on(model) == before and len(seen.errors) == 1
