"""Runs that wait for their data, and ranks that are slower than the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
import torch
from observing import observed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hookcli.capabilities.speed.checks import SlowRank, WaitsForData
from hookcli.capabilities.speed.lines import Pace
from hookcli.checks.base import Check
from hookcli.checks.measurements import Measurements
from hookcli.table.losses import LossCourse

BATCHES, EACH = 10, 0.02


def said(check: Check, *lines: Pace) -> list[str]:
    measured = Measurements(lines={Pace.kind: [*lines]}, losses=LossCourse())
    return [one.message for one in check.judge(measured)]


def waiting(**changed: Any) -> Pace:
    """A run of 10 s that waits in 6 of them for 100 batches."""
    usual = {"batches": 100, "seconds": 10.0, "waited": 6.0, "epochs": 1, "first": 0.06, "starved": 100}
    return Pace("Net", 99, **{**usual, **changed})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (waiting(), "waits for data 60% of the time: 6.0 s of 10.0 s, for 100 batches of a DataLoader with no worker"),
        (waiting(workers=4), "with 4 workers"),
        (waiting(workers=1, epochs=20, first=4.0), "4.0 s of it for the first batch, which it waited for 20 times"),
        (waiting(starved=95), "60%"),
    ],
)
def test_waiting_is_said(line: Pace, words: str) -> None:
    [text] = said(WaitsForData(), waiting(seconds=1e9), line)
    assert words in text


@pytest.mark.parametrize(
    "line",
    [
        waiting(waited=2.9),
        waiting(starved=50),  # an accelerator works meanwhile
        waiting(seconds=1.0, waited=0.9),
        waiting(batches=15, starved=15),
        waiting(batches=700, starved=700),  # 9 ms each
        waiting(batches=0, starved=0, seconds=0.0, waited=0.0),
    ],
)
def test_little_waiting_is_not(line: Pace) -> None:
    assert said(WaitsForData(), line) == []


def test_the_rank_that_waits_most_is_named() -> None:
    [text] = said(WaitsForData(), waiting().of_rank(0), waiting(waited=8.0).of_rank(1))
    assert text.startswith("rank 1 waits for data 80% of the time: 8.0 s of 10.0 s")


def rank(number: int, steps: int = 20, **parts: float) -> Pace:
    times = {"data": 0.0, "forward": 0.1, "backward": 0.2, "optimizer": 0.01, "rest": 0.01}
    return Pace("Net", 59, steps=steps, parts={**times, **parts}).of_rank(number)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (
            [rank(0), rank(1), rank(2), rank(3, forward=0.2)],
            "rank 3 is slow: its forward takes 0.20 s of a step, the median of all ranks 0.10 s",
        ),
        (
            [rank(0, forward=0.2, backward=0.1), rank(1)],
            "rank 0 is slow: its forward takes 0.20 s of a step, the other rank's 0.10 s",
        ),
        (
            [rank(0), rank(1, data=0.08)],
            "rank 1 is slow: waiting for its data takes 80 ms of a step, the other rank's 0 µs",
        ),
    ],
)
def test_a_slow_rank_is_named(lines: list[Pace], text: str) -> None:
    assert said(SlowRank(), *lines) == [text]


@pytest.mark.parametrize(
    "lines",
    [
        [rank(0, forward=0.2)],
        [rank(0), rank(1, backward=0.9)],  # it waits for the other
        [rank(0), rank(1, forward=0.12)],
        [rank(0, backward=9.0), rank(1, forward=0.2)],  # of a long step
        [rank(0), rank(1, steps=7, forward=0.4)],
        [rank(0, steps=8), rank(1, steps=8, forward=0.2)],  # 0.8 s in all: a moment in which other work ran beside it
        [rank(0, forward=0.001, backward=0.001), rank(1, forward=0.004, backward=0.001)],
        [Pace("Net", 3).of_rank(0), Pace("Net", 3).of_rank(1)],
    ],
)
def test_ranks_that_are_much_alike_are_not(lines: list[Pace]) -> None:
    assert said(SlowRank(), *lines) == []


class Slow(Dataset[Tensor]):
    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, item: int) -> Tensor:
        time.sleep(EACH)
        return torch.full((4,), float(item))


def train(epochs: int, batches: Any) -> nn.Module:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in batches():
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return model


def pace(program: Any) -> Pace:
    """The last line of the run."""
    return [one for one in observed(program, every=1).of_parts if isinstance(one, Pace)][-1]


@pytest.mark.sweep
def test_the_time_is_that_of_the_dataset() -> None:
    line = pace(lambda: train(2, lambda: DataLoader(Slow(), batch_size=1)))
    assert (line.batches, line.epochs, line.starved, line.workers) == (2 * BATCHES, 2, 2 * BATCHES, 0)
    assert 2 * BATCHES * EACH <= line.waited < line.seconds
    assert 2 * EACH <= line.first < line.waited
    assert line.steps == 2 * BATCHES
    assert line.parts["data"] >= EACH


@pytest.mark.sweep
def test_batches_that_another_thread_fetches_are_not_waited_for() -> None:
    def fetched() -> Iterator[Tensor]:
        queue = Queue[Tensor | None]()

        def fetch() -> None:
            for batch in DataLoader(Slow(), batch_size=1):
                queue.put(batch)
            queue.put(None)

        thread = threading.Thread(target=fetch)
        thread.start()
        yield from iter(queue.get, None)
        thread.join()

    line = pace(lambda: train(1, fetched))
    assert (line.batches, line.waited) == (0, 0.0)
    assert said(WaitsForData(), line) == []
