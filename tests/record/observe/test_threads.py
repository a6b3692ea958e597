"""Forks and threads of a program."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import forks
import pytest
import torch
from observing import Seen, global_state, observed, observing, rows
from support import swept
from torch import Tensor, nn

from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import RecordingPlan
from hookcli.record.observe.steps import every_loss


@pytest.mark.sweep
def test_a_child_of_a_fork_is_left_alone() -> None:
    """Also where another thread, which is not in the child, was in the midst of something."""
    forks.alone("record.observe.test_threads.train_in_child()")


def train_in_child() -> None:
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


@pytest.mark.parametrize("in_turn", [False, swept(True)])
def test_threads_that_share_a_model(in_turn: bool) -> None:
    """At the same time, where a step that one records keeps another's from being recorded; or one after another."""
    turn = threading.Lock() if in_turn else nullcontext()
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).eval()

    def program() -> list[Tensor]:
        results: list[Any] = [None] * 4

        def work(number: int) -> None:
            generator = torch.Generator().manual_seed(number)
            with torch.no_grad():
                outputs = []
                for _ in range(100):
                    with turn:
                        outputs.append(model(torch.randn(4, 8, generator=generator)))
                results[number] = torch.cat(outputs)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    seen = observed(program, every=10)
    ran = seen.ran["Sequential"]
    assert ran.no_grad_forwards == 400
    assert (len(seen.recorded), 0) == (ran.recorded_forwards, ran.recorded_steps)
    assert len(seen.recorded) == 40 if in_turn else 1 <= len(seen.recorded) <= 40
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


@pytest.mark.sweep
def test_more_threads_than_steps_that_may_be_open() -> None:
    """Windows under way are not closed for others, and each is handed on once."""
    barrier = threading.Barrier(12)

    class Meets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 2), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            barrier.wait(timeout=120)
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


@pytest.mark.sweep
def test_threads_that_train_models_of_their_own() -> None:
    def program() -> list[nn.Module]:
        models = [nn.Linear(4, 2) for _ in range(3)]

        def work(model: nn.Module, number: int) -> None:
            generator = torch.Generator().manual_seed(number)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(10):
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
    assert {ran.steps for ran in seen.ran.values()} == {10} and len(seen.ran) == 3
    for name in seen.ran:
        assert seen.steps(name) == list(range(10))
        assert all(len(w.losses) == 1 and len(rows(w, "updates")) == 2 for w in seen.of(name))


def test_a_thread_reads_no_gradients_of_another_threads_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch frees a gradient without Python's lock: who reads it meanwhile crashes the program, though seldom."""
    read: set[tuple[int, int]] = set()  # who read the gradients of which optimizer
    steps = threading.Barrier(2)
    optimizers: dict[int, int] = {}  # their threads

    class Noting(every_loss.HeldGradients):
        def __init__(self, parameters: Mapping[int, Sequence[Tensor]]) -> None:
            read.update((threading.get_ident(), key) for key in parameters)
            super().__init__(parameters)

    monkeypatch.setattr(every_loss, "HeldGradients", Noting)

    def program() -> list[nn.Module]:
        models = [nn.Linear(4, 2) for _ in range(2)]

        def work(model: nn.Module, number: int) -> None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizers[id(optimizer)] = threading.get_ident()
            for _ in range(4):
                steps.wait(30)
                optimizer.zero_grad()
                model(torch.full((1, 4), 1.0 + number)).sum().backward()
                optimizer.step()
            steps.wait(30)

        threads = [threading.Thread(target=work, args=(m, n)) for n, m in enumerate(models)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return models

    with observing() as seen:
        program()
    assert not seen.errors and len(read & {(thread, o) for o, thread in optimizers.items()}) == 2
    others = {(thread, o) for thread, o in read if optimizers[o] != thread}
    assert len(others) <= 1  # the thread whose backward began first, when no other could have gradients yet
    assert [[*losses] for losses in seen.every_loss.values()] == [[0, 1, 2, 3]] * 2


def test_times_of_a_step_that_begins_in_one_thread_and_ends_in_another() -> None:
    """PyTorch's hook on new nodes belongs to a thread, and the optimizer steps in another one."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def program() -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            outputs: list[Tensor] = []
            thread = threading.Thread(target=lambda outputs=outputs: outputs.append(model(torch.ones(2, 4))))
            thread.start()
            thread.join()
            optimizer.zero_grad()
            outputs[0].sum().backward()
            optimizer.step()

    steps = observed(program, timed=True).of()
    assert [step.step for step in steps] == [0, 1, 2]
    assert all(any(one.probe == "time" for one in step.reports) for step in steps)
