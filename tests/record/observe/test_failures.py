"""Failures of the program, which goes on as it would; and of ours, of which it hears nothing."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from observing import Seen, _run, global_state, observed, observing, rows
from support import equal, hooks_on
from torch import Tensor, nn

from hookcli import registry
from hookcli.probes.base import StatsProbe
from hookcli.record.observe.backward import BackwardPasses
from hookcli.record.observe.forwards import Forwards
from hookcli.record.observe.models import ObservedModels
from hookcli.record.observe.observer import Observer
from hookcli.record.observe.optimizer_calls import OptimizerCalls
from hookcli.record.observe.optimizer_steps import OptimizerSteps
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.record.observe.step import ObservedStep
from hookcli.record.observe.steps import ObservedSteps
from hookcli.record.observe.updates import Snapshot


class Sometimes(nn.Module):
    """Fails in some calls, deep inside."""

    def __init__(self, error: type[BaseException], *calls: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.error, self.calls, self.failing = error, 0, calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls in self.failing:
            raise self.error("not now")
        return self.inner(x)


class Net(nn.Module):
    def __init__(self, error: type[BaseException], *calls: int) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), Sometimes(error, *calls), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_forward_that_fails_and_a_program_that_goes_on(error: type[BaseException]) -> None:
    def program() -> list[nn.Module]:
        model, other = Net(error, 2, 5, 6), nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(7):
            optimizer.zero_grad()
            try:
                model(torch.randn(3, 4)).sum().backward()
            except error:
                other(torch.ones(1, 4))
                continue
            optimizer.step()
        return [model, other]

    seen = observed(program)
    assert seen.steps("Net") == [0, 1, 1, 2, 3, 3, 3] and seen.ran["Net"].forwards == 7
    for number, recorded in enumerate(seen.of("Net"), 1):
        failed, found = number in (2, 5, 6), rows(recorded, "activations")
        assert recorded.forwards == 1 and set(found) == {"first"} | (
            set() if failed else {"", "middle", "middle.inner", "last"}
        )
        assert len(recorded.losses) == int(not failed) and any("failed" in note for note in recorded.notes) is failed
    assert seen.ran["Linear"].forwards == 3


def test_a_backward_pass_that_fails() -> None:
    def program() -> nn.Module:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            if number == 1:
                with pytest.raises(RuntimeError, match="second time"):
                    loss.backward()
            optimizer.step()
        return model

    assert observed(program).steps() == [0, 1, 2]


def test_a_step_that_fails() -> None:
    class Failing(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            self.calls += 1
            if self.calls == 2:
                raise ValueError("not now")
            return super().step(closure)

    def program() -> nn.Module:
        model = nn.Linear(2, 1)
        optimizer = Failing(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            try:
                optimizer.step()
            except ValueError:
                optimizer.zero_grad()
        return model

    seen = observed(program)
    assert seen.steps() == [0, 1, 1, 2] and [w.forwards for w in seen.recorded] == [1, 1, 1, 1]
    assert seen.ran["Linear"].steps == 3
    failed, again = seen.recorded[1:3]
    assert ["step failed" in "".join(w.notes) for w in seen.recorded] == [False, True, False, False]
    assert [w.complete for w in seen.recorded] == [True, False, True, True]
    assert len(failed.losses) == 1 and {r.probe for r in failed.reports} == {"activations", "grads"}
    assert rows(again, "updates")["bias"]["update"] == pytest.approx(0.1)


class NoStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise RuntimeError("out of memory")


@pytest.mark.parametrize("where", ["forward", "step"])
@pytest.mark.parametrize("every", [1, 100])
def test_what_failed_is_freed_as_if_nobody_looked(where: str, every: int) -> None:
    """Not by the next call alone: a program tries again once it has the memory."""
    held: list[weakref.ref[Any]] = []
    seen_alive: list[list[bool]] = []

    def train() -> None:
        model = Net(RuntimeError, 2 if where == "forward" else 0)
        local, optimizer = torch.zeros(3), (NoStep if where == "step" else torch.optim.SGD)(model.parameters(), lr=0.1)
        held.extend(map(weakref.ref, (model, optimizer, local)))
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    def program() -> None:
        for _ in range(3):
            held.clear()
            with suppress(RuntimeError):
                train()
            gc.collect()
            seen_alive.append([ref() is not None for ref in held])

    with observing(every=every) as seen:
        program()
    assert not seen.errors and seen_alive == [[False] * 3] * 3
    assert len(seen.ran) == 3


def test_copies_of_parameters_go_with_the_step_that_fails() -> None:
    model = nn.Linear(2, 1)
    optimizer = NoStep(model.parameters(), lr=0.1)
    seen = Seen()
    observer = Observer(RecordingPlan(every=1), seen).start()
    model(torch.ones(1, 2)).sum().backward()
    with suppress(RuntimeError):
        optimizer.step()
    left = len(observer._optimizer_calls._snapshots)
    observer.stop()
    assert left == 0 and not seen.errors


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
    *((OptimizerCalls, name) for name in ("begin", "end", "_stepped")),
    *((ObservedSteps, name) for name in ("of", "search", "close")),
    *((ObservedStep, name) for name in ("begin_forward", "recorded")),
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


def test_a_child_of_a_fork_is_left_alone() -> None:
    """Also where another thread, which is not in the child, was in the midst of something."""
    seen, before, model, x = Seen(), global_state(), nn.Linear(2, 1), torch.ones(1, 2)
    observer = Observer(RecordingPlan(every=1), seen).start()
    output = model(x).sum()  # a step is open, with hooks on tensors
    held, release = threading.Event(), threading.Event()

    def work() -> None:
        with observer._lock:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        output.backward()
        model(x).sum().backward()
        here = global_state()
        here["_global_optimizer_pre_hooks"] -= 1  # by which the parent knows whether a child trains
        os._exit(0 if here == before else 3)
    ended, deadline = (0, 0), time.monotonic() + 30
    while ended[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
        ended = os.waitpid(child, os.WNOHANG)
    if ended[0] == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    release.set()
    thread.join()
    observer.stop()
    assert ended == (child, 0) and len(seen.recorded) == 1


def test_threads_that_share_a_model() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).eval()

    def program() -> list[Tensor]:
        results: list[Any] = [None] * 4

        def work(number: int) -> None:
            generator = torch.Generator().manual_seed(number)
            with torch.no_grad():
                results[number] = torch.cat([model(torch.randn(4, 8, generator=generator)) for _ in range(200)])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    seen = observed(program, every=10)
    assert seen.ran["Sequential"].no_grad_forwards == 800
    assert len(seen.recorded) == seen.ran["Sequential"].recorded_steps >= 40
    for recorded in seen.recorded:
        assert all(row["calls"] == 1 for row in rows(recorded, "activations").values())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_backward_pass_inside_a_forward() -> None:
    class Energy(nn.Module):
        """A force field: what it returns is a gradient of what its parts compute."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 5), nn.Linear(5, 1)

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                self.first(x).sum().backward()
            return self.last(self.first(x.grad).tanh())

    def program() -> nn.Module:
        model = Energy()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(2, 3)).sum().backward()
            optimizer.step()
        return model

    for recorded in observed(program).recorded:
        calls = {fqn: row["calls"] for fqn, row in rows(recorded, "activations").items()}
        assert calls == {"": 1, "first": 2, "last": 1}
        assert set(rows(recorded, "grads", "output")) == {"", "first", "last"}


def test_more_threads_than_steps_that_may_be_open() -> None:
    """Windows under way are not closed for others, and each is handed on once."""
    barrier = threading.Barrier(12)

    class Meets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            barrier.wait(timeout=30)
            return self.last(x)

    def program() -> list[nn.Module]:
        models = [Meets() for _ in range(12)]
        threads = [threading.Thread(target=lambda m: m(torch.ones(1, 2)).sum().backward(), args=(m,)) for m in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return models

    seen = observed(program)
    assert len(seen.recorded) == 12 == len({w.model for w in seen.recorded})
    for recorded in seen.recorded:
        assert set(rows(recorded, "activations")) == {"", "first", "last"}


def test_threads_that_train_models_of_their_own() -> None:
    def program() -> list[nn.Module]:
        models = [nn.Linear(4, 2) for _ in range(3)]

        def work(model: nn.Module, number: int) -> None:
            generator = torch.Generator().manual_seed(number)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(30):
                optimizer.zero_grad()
                model(torch.randn(4, 4, generator=generator)).pow(2).mean().backward()
                optimizer.step()

        threads = [threading.Thread(target=work, args=(m, n)) for n, m in enumerate(models)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return models

    seen = observed(program)
    assert {ran.steps for ran in seen.ran.values()} == {30} and len(seen.ran) == 3
    for name in seen.ran:
        assert seen.steps(name) == list(range(30))
        assert all(len(w.losses) == 1 and len(rows(w, "updates")) == 2 for w in seen.of(name))
