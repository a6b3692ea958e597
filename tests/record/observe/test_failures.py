"""A program that fails is recorded up to there, and fails as it would."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from typing import Any

import pytest
import torch
from observing import Seen, observed, observing, rows
from support import swept
from torch import Tensor, nn

from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import RecordingPlan


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


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, swept(SystemExit)])
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
    if issubclass(error, Exception):  # else no hook has seen the end of the forward, whose frames are still alive
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
    assert len(failed.losses) == 1 and {r.probe for r in failed.reports} == {
        "activations",
        "grads",
        "optimizer",
        "time",
    }
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
