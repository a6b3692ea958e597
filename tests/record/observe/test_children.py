"""Child processes are not looked at; that they trained, or that nothing is known of them, is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import forks
import pytest
import torch
from observing import Seen, global_state
from support import swept
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hookcli.record.observe.observer import Observer
from hookcli.record.observe.recording_plan import RecordingPlan

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def notes_of(program: Callable[[], object]) -> tuple[list[str], Observer]:
    before, observer = global_state(), Observer(RecordingPlan(every=1), Seen()).start()
    try:
        program()
    finally:
        observer.stop()
    assert global_state() == before
    return observer.child_notes(), observer


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def in_children(how: str, number: int, target: Callable[..., Any], *args: Any) -> None:
    processes = [get_context(how).Process(target=target, args=args) for _ in range(number)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


@pytest.mark.parametrize("number", [swept(1), 3])
def test_children_that_train_are_counted(number: int) -> None:
    """As in PyTorch's example "hogwild", where they share the weights of one model."""
    forks.alone(f"record.observe.test_children.count_children({number})")


def count_children(number: int) -> None:
    model = nn.Linear(2, 1).share_memory()
    before = model.weight.detach().clone()
    (note,), observer = notes_of(lambda: in_children("fork", number, train, model))
    assert not torch.equal(model.weight, before)
    processes = "3 child processes" if number == 3 else "1 child process"
    assert note == f"{processes} trained models, which are not in this record" and not observer.models.counts


@pytest.mark.sweep
def test_a_child_of_a_child() -> None:
    forks.alone("record.observe.test_children.count_grandchild()")


def count_grandchild() -> None:
    def parent() -> None:
        child = os.fork()
        if child == 0:
            train(nn.Linear(2, 1))
            os._exit(0)
        os._exit(os.waitpid(child, 0)[1])

    (note,), _ = notes_of(lambda: in_children("fork", 1, parent))
    assert note.startswith("1 child process trained")


class Data(Dataset[Tensor]):
    """Looks at a model, which does not train it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Tensor:
        return nn.Linear(2, 2)(torch.full((2,), float(number))).detach()


@pytest.mark.sweep
def test_processes_that_load_data_or_do_not_train_say_nothing() -> None:
    notes, _ = notes_of(lambda: (list(DataLoader(Data(), num_workers=2)), in_children("fork", 1, os.getpid)))
    assert notes == []


def test_of_children_that_begin_anew_no_more_is_known() -> None:
    (note,), _ = notes_of(lambda: in_children("spawn", 2, os.getpid))
    assert note == "2 child processes started anew (spawn), which are not recorded"
