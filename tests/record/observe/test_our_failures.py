"""Parts of ours that fail change nothing for the program."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import Seen, _run, observed
from support import equal, hooks_on, swept
from torch import Tensor, nn

from hookcli import registry
from hookcli.probes.base import StatsProbe
from hookcli.probes.grads import GradsProbe
from hookcli.record.observe.measurements.step_times import TimeProbe
from hookcli.record.observe.models.models import ObservedModels
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.optimizer_calls import OptimizerCalls
from hookcli.record.observe.optimizers.optimizer_steps import OptimizerSteps, Snapshot
from hookcli.record.observe.optimizers.parameters import ParameterRows
from hookcli.record.observe.parts import BegunStep, make_recorders
from hookcli.record.observe.passes import BackwardPasses, Forwards
from hookcli.record.observe.recording_plan import PROBES, RecordingPlan
from hookcli.record.observe.steps.open_steps import OpenSteps
from hookcli.record.observe.steps.step import ObservedStep
from hookcli.registry.capability import recorder_options
from hookcli.tensors.stats import Reducer


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


@pytest.mark.sweep
def test_a_probe_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda group, name: Broken if name == "activations" else load(group, name))
    seen = Seen()
    seen_with_failure(seen)
    (error,) = seen.errors
    assert str(error) == "ours" and seen.steps() == [0, 1, 2, 3]
    assert {report.probe for step in seen.recorded[1:] for report in step.reports} == {
        *("grads", "updates", "optimizer", "time")
    }


SEARCH = {option.name: option.searches for option in recorder_options().values() if option.searches}
BEGUN = BegunStep("Net", nn.Identity(), str, True, PROBES, gradients=True, operators=False, reduce=Reducer())
OF_CAPABILITIES = {
    name: type(of_step)
    for name, part in make_recorders(RecordingPlan(of_parts=SEARCH)).items()
    if (of_step := part.begin_step(BEGUN))
}
PARTS: tuple[tuple[type, str, str], ...] = (
    (ParameterRows, "take_groups", "optimizer"),
    (ParameterRows, "take_unclipped", "optimizer"),
    (ParameterRows, "take_gradients", "grads"),
    (ParameterRows, "take_updates", "updates"),
    (ParameterRows, "group_rows", "optimizer"),
    (GradsProbe, "report", "grads"),
    (TimeProbe, "attach", "time"),
    (TimeProbe, "rows", "time"),
    *(
        (kind, method, name)
        for name, kind in OF_CAPABILITIES.items()
        for method in ("attach", "backward_over", "look", "lines")
    ),
)


CORE = len(PARTS) - 4 * len(OF_CAPABILITIES)


@pytest.mark.parametrize(
    ("owner", "method", "part"),
    # Of each capability's part, which is called as the others are, one method.
    [case if number < CORE or (number - CORE) % 5 == 0 else swept(*case) for number, case in enumerate(PARTS)],
)
def test_a_part_that_fails_ends_no_other(owner: type, method: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out from then on, for its model, and the notes say so; all other reports are there."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("ours")

    alone, seen = _run(training), Seen()
    monkeypatch.setattr(owner, method, fail)
    plan = RecordingPlan(every=1, of_parts=SEARCH if part in OF_CAPABILITIES else {})
    observer = Observer(plan, seen).start()
    try:
        assert equal(alone, _run(training))
    finally:
        observer.stop()
    assert [str(error) for error in seen.errors] == ["ours"]
    assert seen.steps() == [0, 1, 2, 3]
    left = {"activations", "grads", "updates", "optimizer", "time"} - {part}
    assert left <= {report.probe for report in seen.recorded[-1].reports}
    (note,) = observer.models.counts["Sequential"].notes
    assert note.startswith(f"{part}: left out from here on, since hookcli failed (ZeroDivisionError: ours)")


def test_a_module_that_pytorch_cant_list_is_left_out_alone() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def __eq__(self, other: object) -> bool:  # so that it has no hash
            return self is other

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    def program() -> nn.Module:
        model, odd = nn.Linear(4, 4), Odd()
        optimizer = torch.optim.SGD([*model.parameters(), odd.scale], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            odd(model(torch.ones(2, 4))).sum().backward()
            optimizer.step()
        return model

    seen = observed(program)
    assert list(seen.ran) == ["Linear"] and seen.steps() == [0, 1, 2]
    assert [note for note in seen.notes if note.startswith("Odd is left out")]


def test_models_on_meta_and_in_torchscript_go_on_beside_others() -> None:
    def program() -> list[nn.Module]:
        plain, meta = nn.Linear(4, 1), nn.Linear(4, 1, device="meta")
        scripted = torch.jit.trace(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), torch.ones(1, 4))
        models = [plain, meta, scripted]
        for model in models:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                device = "meta" if model is meta else "cpu"
                model(torch.ones(2, 4, device=device)).sum().backward()
                optimizer.step()
        return [plain, scripted]

    seen = observed(program)
    assert {model.steps for model in seen.ran.values()} == {2} and len(seen.ran) >= 3
    assert [step.loss for step in seen.of("Linear") if step.loss is not None][1:]


@pytest.mark.sweep
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
    *((OpenSteps, name) for name in ("of", "look", "close")),
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
