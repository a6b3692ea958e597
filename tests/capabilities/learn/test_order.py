"""Epochs whose batches come in one order: how it is seen, and what a user reads of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from commands.test_run_nan import run
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hookcli.capabilities.learn.forwards.order import first_row
from hookcli.capabilities.learn.lines import Learning

ROWS, EPOCHS = 100, 4
Batches = Callable[[Tensor, Tensor], Iterator[tuple[Tensor, Tensor]]]


def in_slices(size: int, *, last: bool = True) -> Batches:
    def batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for begin in range(0, ROWS if last else ROWS // size * size, size):
            yield x[begin : begin + size], y[begin : begin + size]

    return batches


def loaded(**how: object) -> Batches:
    size = {} if "batch_sampler" in how else {"batch_size": 20}
    return lambda x, y: iter(DataLoader(TensorDataset(x, y), **size, **how))  # type: ignore[arg-type]


def shuffled(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(ROWS)
    yield from in_slices(20)(x[order], y[order])


def permuted_slices(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for begin in torch.randperm(5).tolist():
        yield x[20 * begin : 20 * begin + 20], y[20 * begin : 20 * begin + 20]


class Streamed(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(self.x, self.y, strict=True))


def streamed(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return iter(DataLoader(Streamed(x, y), batch_size=20))


def training(batches: Batches, epochs: int = EPOCHS) -> Callable[[], nn.Module]:
    def program() -> nn.Module:
        x = torch.randn(ROWS, 6)
        y = x[:, :1] * 2
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(epochs):
            for of_x, of_y in batches(x, y):
                optimizer.zero_grad()
                F.mse_loss(model(of_x), of_y).backward()
                optimizer.step()
        return model

    return program


def epochs_seen(program: Callable[[], nn.Module], every: int = 1) -> int:
    lines = [line for line in observed(program, every=every).of_parts if isinstance(line, Learning)]
    return lines[-1].ordered


@pytest.mark.parametrize(
    ("batches", "every", "epochs"),
    [
        (in_slices(20), 1, 4),
        swept(in_slices(20), 2, 4),
        (in_slices(30), 1, 4),  # the last one is shorter
        swept(in_slices(30, last=False), 1, 4),
        (loaded(), 1, 4),
        swept(loaded(), 7, 3),
        (loaded(shuffle=True), 1, 0),
        (shuffled, 1, 0),
        (permuted_slices, 1, 0),
        (streamed, 1, 0),
        swept(in_slices(100), 1, 0),  # all of it
        swept(loaded(batch_sampler=[[0, 1], [2, 3]]), 1, 0),
    ],
)
def test_epochs_in_one_order_are_counted(batches: Batches, every: int, epochs: int) -> None:
    assert epochs_seen(training(batches), every) == epochs


def test_one_epoch_says_nothing() -> None:
    assert epochs_seen(training(loaded(), 1)) == epochs_seen(training(in_slices(5), 1)) == 0


def test_the_first_row_of_a_slice() -> None:
    x = torch.randn(10, 4)
    assert [first_row(one) for one in (x[0:3], x[4:6], x[9:])] == [0, 4, 9]
    assert first_row(x[2:][3:5]) == 5  # a slice of a slice
    assert {first_row(one) for one in (x, x[::2], x[1], x.T, x[:, 1:], x.flatten()[4:8], x[3:5] * 1)} == {None}


TRAIN = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 8)
data = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=32, shuffle=sys.argv[1] == "shuffled")
net = nn.Linear(8, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.5)
for epoch in range(3):
    for inputs, labels in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
"""


@pytest.mark.parametrize("order", ["one", swept("shuffled")])
def test_the_remark_on_epochs_in_one_order(order: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    ran = run(tmp_path, "run", "-o", "a.run.jsonl", "train.py", order)
    _, first, *lines = ran.stderr.splitlines()
    assert first.startswith("hookcli: train.py: 30 steps")
    remark = "Linear: the batches come in one order in each of 3 epochs; unless that is meant, shuffle them"
    assert (remark in " ".join(" ".join(lines).split())) is (order == "one")
    assert lines[-1] == "Next: hookcli report a.run.jsonl"


def in_place(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(ROWS)
    x[:], y[:] = x[order], y[order]
    yield from in_slices(20)(x, y)


def test_rows_that_are_shuffled_in_place_are_not_in_one_order() -> None:
    assert epochs_seen(training(in_place)) == 0
