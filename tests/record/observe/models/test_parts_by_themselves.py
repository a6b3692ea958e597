"""A model that is called whole and by its parts is one model."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from observing import observed, rows
from support import swept
from torch import Tensor, nn


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3))

    def decode(self, z: Tensor) -> Tensor:
        return self.dec(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.enc(x))


def train(model: Coder, steps: int = 3, forward: Callable[[Tensor], Tensor] | None = None) -> Coder:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (forward or model)(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
    return model


def a_part_without_gradients() -> list[nn.Module]:
    model = train(Coder())
    with torch.no_grad():
        model.decode(torch.ones(2, 2))
    return [model]


def all_parts_in_training_and_the_whole_before() -> list[nn.Module]:
    model = Coder()
    with torch.no_grad():
        model(torch.ones(2, 3))
    return [train(model, forward=lambda x: model.dec(model.enc(x)))]


def a_part_of_a_part() -> list[nn.Module]:
    model = train(Coder())
    model.dec[1](torch.ones(2, 4))
    return [model]


def a_part_after_its_wrapper() -> list[nn.Module]:
    model = Coder()
    wrapped = nn.DataParallel(model)
    train(wrapped)  # type: ignore[arg-type]
    wrapped.module.dec(torch.ones(2, 2))
    return [model]


@pytest.mark.parametrize(
    "program",
    [
        a_part_without_gradients,
        swept(all_parts_in_training_and_the_whole_before),
        swept(a_part_of_a_part),
        swept(a_part_after_its_wrapper),
    ],
)
def test_is_one_model(program: Callable[[], list[nn.Module]]) -> None:
    seen = observed(program)
    assert list(seen.ran) == ["Coder"] and seen.ran["Coder"].steps == 3
    assert "called by" in seen.ran["Coder"].notes[-1]
    assert {fqn.split(".")[0] for step in seen.of("Coder") for fqn in rows(step, "activations")} <= {"", "enc", "dec"}


@pytest.mark.sweep
@pytest.mark.parametrize("whole", [True, False])
def test_a_copy_without_an_optimizer_is_one_model_too(whole: bool) -> None:
    def program() -> list[nn.Module]:
        model = Coder()
        average = copy.deepcopy(model).requires_grad_(False)
        train(model)
        if whole:
            average(torch.ones(2, 3))
        average.decode(torch.ones(2, 2))
        average.enc(torch.ones(2, 3))
        return [model, average]

    seen = observed(program)
    assert [name.partition(" ")[0] for name in seen.ran] == ["Coder", "Coder"]


@pytest.mark.sweep
def test_parts_with_optimizers_of_their_own_stay_apart() -> None:
    def program() -> nn.Module:
        both = Coder()
        for part, x in ((both.enc, torch.ones(2, 3)), (both.dec, torch.ones(2, 2))):
            optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
            part(x).sum().backward()
            optimizer.step()
        return both

    assert list(observed(program).ran) == ["Coder.enc", "Coder.dec"]
