"""Batches of a step that train nothing, and others that only look like them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults, net
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

STEPS = 5
CLEARED = "a step has 4 backward passes, each of 1/4 of the loss, but gradients are cleared before each"
AFTER = "6 batches of a DataLoader go through the model in a step, but backward() is called for the last one alone"


def batches(number: int) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(number):
        x = torch.randn(16, 6)
        yield x, x[:, :3].argmax(1)


def accumulated(
    *,
    clears: bool = True,
    scale: float = 0.25,
    after_pass: Callable[[nn.Module], object] = lambda model: None,
    before_step: Callable[[nn.Module], object] = lambda model: None,
) -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for number, (x, y) in enumerate(batches(4 * STEPS)):
        if clears or number % 4 == 0:
            optimizer.zero_grad()
        (scale * F.cross_entropy(model(x), y)).backward()
        after_pass(model)
        if number % 4 == 3:
            before_step(model)
            optimizer.step()
    return model


def private() -> nn.Module:
    """The gradients of each part are clipped, and added by the program."""
    parts: list[list[Tensor]] = []

    def keep(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        parts.append([p.grad.clone() for p in model.parameters() if p.grad is not None])

    def put_back(model: nn.Module) -> None:
        for p, grads in zip(model.parameters(), zip(*parts, strict=True), strict=True):
            p.grad = torch.stack(grads).sum(0)
        parts.clear()

    return accumulated(after_pass=keep, before_step=put_back)


def clipped() -> nn.Module:
    return accumulated(before_step=lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01))


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (accumulated, CLEARED),
        swept(clipped, CLEARED),
        (lambda: accumulated(clears=False), ""),
        swept(lambda: accumulated(scale=1.0), ""),  # attacks, and other passes, whose gradients are not meant to count
        (private, ""),
    ],
)
def test_gradients_that_are_cleared_within_accumulation(program: Callable[[], Any], expected: str) -> None:
    said = all_faults(program)
    assert said[0].startswith(expected) if expected else not said


def mined(pick: Callable[[list[Tensor]], Tensor]) -> nn.Module:
    """Trains on what `pick` makes of the losses of six batches."""
    model, x = net(), torch.randn(96, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 16, shuffle=True)
    for _ in range(STEPS):
        loss = pick([F.cross_entropy(model(rows), y) for rows, y in loader])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def after_loop(*, trains_each: bool = False, looks: bool = False) -> nn.Module:
    model, x = net(), torch.randn(96, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 16, shuffle=True)
    for _ in range(STEPS):
        for rows, y in loader:
            optimizer.zero_grad()
            likely = model(rows).argmax(1) if looks else y  # as for labels that the model makes itself
            loss = F.cross_entropy(model(rows), y + 0 * likely)
            if trains_each:
                loss.backward()
                optimizer.step()
        if not trains_each:
            loss.backward()
            optimizer.step()
    return model


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (after_loop, AFTER),
        (lambda: after_loop(trains_each=True), ""),
        swept(lambda: after_loop(trains_each=True, looks=True), ""),
        (lambda: mined(lambda losses: torch.stack(losses).mean()), ""),
        swept(lambda: mined(lambda losses: max(losses, key=float)), ""),  # the hardest batch
    ],
)
def test_a_backward_after_the_loop_over_batches(program: Callable[[], Any], expected: str) -> None:
    said = all_faults(program)
    assert said[0].startswith(expected) if expected else not said
