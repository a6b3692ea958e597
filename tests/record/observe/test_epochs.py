"""The last step of a run over a DataLoader is recorded, however the program takes its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from observing import observing
from support import swept
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from hookcli.hooks.torch_private.exchange import batches_in_all
from hookcli.record.observe import recording_plan

Batches = Iterable[list[Tensor]]
DATA = TensorDataset(torch.randn(70, 4))


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_plan, "_MINUTE", 1e6)
    monkeypatch.setattr(recording_plan, "_AT_ONCE", 1e4)


def ahead(batches: Batches) -> Iterator[list[Tensor]]:
    """The batches, the next of which is fetched before each is handed on, as Accelerate does."""
    rest = iter(batches)
    batch = next(rest)
    for following in rest:
        yield batch
        batch = following
    yield batch


def trained(data: DataLoader[Any], epochs: int, each: int = 1, fetched: Callable[[Batches], Batches] = iter) -> int:
    """Train for so many epochs, with a step after `each` batches, and an evaluation after each epoch."""
    net = nn.Linear(4, 1)
    optimizer, steps = torch.optim.SGD(net.parameters(), lr=1e-3), 0
    for _ in range(epochs):
        for number, (x,) in enumerate(fetched(data), 1):
            net(x).square().mean().backward()
            if number % each == 0:
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        with torch.no_grad():
            for (x,) in DataLoader(DATA, batch_size=35):
                net(x)
    return steps


def recorded(run: Callable[[], int]) -> tuple[set[int], int]:
    """The recorded training steps, and the number of all."""
    with observing(every=None, probes=("grads",), no_grad=0) as seen:
        steps = run()
    assert not seen.errors
    return set(seen.steps()), steps


@pytest.mark.parametrize(
    ("epochs", "each", "fetched"),
    [
        (1, 1, ahead),
        *(swept(epochs, each, iter) for epochs, each in ((3, 2), (1, 1), (3, 1), (4, 5), (3, 70), (7, 70))),
        *(swept(epochs, each, ahead) for epochs, each in ((4, 5), (3, 1), (3, 2), (7, 70))),
    ],
)
@pytest.mark.parametrize("shuffle", [swept(False), True])
def test_the_last_step_is_recorded(epochs: int, each: int, fetched: Any, shuffle: bool) -> None:
    data = DataLoader(DATA, shuffle=shuffle)
    chosen, steps = recorded(lambda: trained(data, epochs, each, fetched))
    assert steps == epochs * (70 // each) and steps - 1 in chosen and len(chosen) <= 48 + steps // 8 + 2 * epochs


@pytest.mark.sweep
def test_of_many_epochs_the_last_is_recorded_if_their_number_is_round() -> None:
    data = DataLoader(DATA, batch_size=10)
    chosen, steps = recorded(lambda: trained(data, 90))
    assert steps == 630 and steps - 1 in chosen and len(chosen) < 130
    with observing(every=100) as seen:
        trained(data, 20)
    assert seen.steps() == [0, 100]


def test_a_sampler_of_the_program_is_not_asked_for_its_length() -> None:
    class Sampler(RandomSampler):
        def __len__(self) -> int:
            raise AssertionError

    data = DataLoader(DATA, sampler=Sampler(DATA))
    chosen, steps = recorded(lambda: trained(data, 1))
    assert steps == 70 and steps - 1 not in chosen
    assert batches_in_all(iter(DataLoader(DATA, batch_size=None))) == 70 and batches_in_all(object()) == 0
