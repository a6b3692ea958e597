"""Errors that are squared, or made absolute, by a loss or by hand: what guessing gives for their targets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.lines import Learning
from hookcli.capabilities.learn.losses.returned import Returned
from hookcli.hooks.node_hooks import metadata_of, walk

N, STEPS = 64, 120
Error = Callable[[Tensor, Tensor], Tensor]

ABSOLUTE: dict[str, Error] = {
    "l1": F.l1_loss,
    "by hand": lambda out, y: (y - out).abs().mean(),
    "a sum": lambda out, y: F.l1_loss(out, y, reduction="sum") / N,
    "huber": lambda out, y: F.huber_loss(out, y, delta=0.4),
    "smooth l1": lambda out, y: F.smooth_l1_loss(out, y, beta=0.4),
    "huber, not reduced": lambda out, y: F.huber_loss(out, y, delta=0.4, reduction="none").mean(),
}
SQUARED: dict[str, Error] = {
    "mse": F.mse_loss,
    "by hand": lambda out, y: ((out - y) ** 2).mean(),
    "a square": lambda out, y: (y - out).square().mean(),
    "squeezed": lambda out, y: (out.squeeze(1) - y.squeeze(1)).pow(2).mean(),
    "a sum": lambda out, y: ((out - y) ** 2).sum() / N,
    "a column": lambda out, y: ((out[:, 0] - y[:, 0]) ** 2).mean(),
    "rows": lambda out, y: ((out - y) ** 2).sum(1).mean(),
    "the root": lambda out, y: F.mse_loss(out, y).sqrt(),
    "the root, never of 0": lambda out, y: torch.sqrt(F.mse_loss(out, y) + 1e-8),
    "half of it": lambda out, y: 0.5 * ((out - y) ** 2).mean(),
}
OTHERS: dict[str, Error] = {
    "cubes": lambda out, y: (out - y).abs().pow(3).mean(),
    "a pair of outputs": lambda out, _: (out - out.roll(1)).square().mean(),
    "a penalty": lambda out, _: out.square().mean(),
    "a part": lambda out, y: (2 * out - y).square().mean(),
    "twice the targets": lambda out, y: torch.sub(out, y, alpha=2).square().mean(),
}


def program(error: Error, *, shuffled: bool = False, steps: int = STEPS, seed: int = 3) -> Callable[[], nn.Module]:
    """A regression; of `shuffled` targets nothing can be learned."""

    def run() -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(steps):
            x = torch.randn(N, 4)
            y = targets(x)
            loss = error(model(x), y[torch.randperm(N)] if shuffled else y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model

    return run


def targets(x: Tensor) -> Tensor:
    return 1 + x[:, :1] * 2 - x[:, 1:2]


def first_line(error: Error) -> Learning:
    parts = observed(program(error, steps=1)).of_parts
    return next(line for line in parts if isinstance(line, Learning))


def first_targets() -> Tensor:
    torch.manual_seed(3)
    nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    return targets(torch.randn(N, 4)).double()


@pytest.mark.parametrize("name", SQUARED)
def test_the_error_of_the_mean_of_the_targets(name: str) -> None:
    line, times = first_line(SQUARED[name]), 0.5 if name == "half of it" else 1
    assert line.spread == pytest.approx(first_targets().var(correction=0).item(), rel=1e-4)
    assert line.center == pytest.approx(first_targets().mean().item(), rel=1e-4)
    assert (line.absolute, line.times) == (False, pytest.approx(times))


@pytest.mark.parametrize("name", ABSOLUTE)
def test_the_error_of_the_median_of_the_targets(name: str) -> None:
    y = first_targets()
    error = (y - y.median()).abs()
    if "huber" in name:
        error = torch.where(error < 0.4, error**2 / 2, 0.4 * (error - 0.2))
    if "smooth" in name:
        error = torch.where(error < 0.4, error**2 / 0.8, error - 0.2)
    line = first_line(ABSOLUTE[name])
    assert line.spread == pytest.approx(error.mean().item() * N / (N - 1), rel=1e-4)
    assert (line.absolute, line.times) == (True, pytest.approx(1))


@pytest.mark.parametrize("name", OTHERS)
def test_other_errors_have_no_known_targets(name: str) -> None:
    assert first_line(OTHERS[name]).spread is None


@pytest.mark.parametrize("name", ["l1", "by hand", *map(swept, ("huber, not reduced", "smooth l1"))])
def test_absolute_errors_that_are_no_better_than_guessing(name: str) -> None:
    (text,) = all_faults(program(ABSOLUTE[name], shuffled=True))
    assert "better than always returning the median of the targets (" in text
    assert not all_faults(program(ABSOLUTE[name]))


@pytest.mark.parametrize("name", ["by hand", "the root", *map(swept, ("squeezed", "a column"))])
def test_squares_by_hand_that_are_no_better_than_guessing(name: str) -> None:
    (text,) = all_faults(program(SQUARED[name], shuffled=True))
    spread = "standard deviation" if name == "the root" else "variance"
    assert f"better than always returning the mean of the targets (their {spread} is" in text
    assert not all_faults(program(SQUARED[name]))


def test_outputs_far_from_the_targets_of_absolute_errors() -> None:
    (text,) = all_faults(program(lambda out, y: F.l1_loss(out, 100 + y)))
    assert "far worse than always returning the median" in text
    assert "on average, and the targets 101" in text


def test_outputs_are_held_by_their_nodes_and_let_go() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    outputs = x.unbind()  # of one node
    returned = Returned()
    returned.hold(outputs)
    (held,) = {id(held): held for y in outputs for held in metadata_of(y.grad_fn).values()}.values()
    assert [*held.outputs] == [0, 1, 2, 3]
    assert not any(y.requires_grad for y, _ in held.outputs.values())
    returned.let_go()
    assert not held.outputs


def test_nothing_stays_on_the_graph_after_the_backward_pass() -> None:
    losses: list[Tensor] = []

    def keeping(out: Tensor, y: Tensor) -> Tensor:
        losses.append(F.mse_loss(out, y))
        return losses[-1]

    observed(program(keeping, steps=3))
    nodes = [node for loss in losses for node in walk([loss.grad_fn])]
    assert nodes
    assert not any(getattr(one, "outputs", None) for node in nodes for one in metadata_of(node).values())


def test_outputs_that_are_changed_in_place_before_the_backward_pass_tell_no_targets() -> None:
    def changing(out: Tensor, y: Tensor) -> Tensor:
        loss = ((out - y) ** 2).mean()
        with torch.no_grad():
            out.mul_(3).add_(1)  # for a figure that is printed
        return loss

    assert first_line(changing).spread is None


def test_targets_that_follow_from_the_outputs_have_no_spread() -> None:
    assert not first_line(lambda out, _: ((out - 1) ** 2).mean()).spread


def test_a_loss_that_has_fallen_far_may_be_of_the_channels_of_one_image() -> None:
    def program() -> nn.Module:
        torch.manual_seed(0)
        image = 0.5 + 0.3 * torch.rand(1, 12, 12) + 0.01 * torch.randn(3, 12, 12)  # nearly grey
        noise = torch.randn(1, 4, 12, 12)
        model = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            ((model(noise).squeeze(0) - image) ** 2).mean().backward()
            optimizer.step()
        return model

    assert not all_faults(program)
