"""Correct trainings that look like faulty ones: nothing is said of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from capabilities.learn.test_parts import measured
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from hookcli.capabilities.learn.judging.headline import faults

STEPS = 10


def net(*sizes: int) -> nn.Sequential:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class FirstToken(nn.Module):
    """Rows that begin with the same token, whose output can't differ there."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 8), nn.Linear(8, 5000)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embed(tokens).cumsum(1))
        return scores


def first_token() -> None:
    model = FirstToken()
    optimizer = sgd(model)
    for _ in range(STEPS):
        tokens = torch.randint(12, (4, 6))
        tokens[:, 0] = 0
        step(optimizer, F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))


class Policy(nn.Module):
    """Its first output is the same for each row on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.spread, self.mean = nn.Parameter(torch.full((2,), 0.3)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.spread.expand(len(x), 2), self.mean(x)


def policy() -> None:
    model = Policy()
    optimizer = sgd(model)
    for _ in range(STEPS):
        spread, mean = model(torch.randn(8, 4))
        step(optimizer, (mean - 1).square().mean() + spread.square().mean())


def attacked() -> None:
    """Adversarial training, whose attack is made in eval mode."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 4))
    optimizer = sgd(model)
    for number in range(STEPS):
        x, y = torch.randn(16, 6), torch.randint(4, (16,))
        if number > 3:
            model.eval()
            x.requires_grad_()
            (grad,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
            x = (x + 0.1 * grad.sign()).detach()
            model.train()
        step(optimizer, F.cross_entropy(model(x), y))


class Probe(nn.Module):
    """A trunk that is trained elsewhere, and runs without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = net(6, 16, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.trunk(x)
        scores: Tensor = self.head(x)
        return scores


def probe() -> None:
    model = Probe()
    optimizer = sgd(model)
    for _ in range(STEPS):
        step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(4, (8,))))


class Pair(nn.Module):
    """A generator and a discriminator in one module, trained by turns."""

    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = net(3, 8, 2), net(2, 8, 1)

    def forward(self, noise: Tensor, *, cut: bool) -> Tensor:
        made = self.maker(noise)
        judged: Tensor = self.judge(made.detach() if cut else made)
        return judged


def pair() -> None:
    model = Pair()
    of_maker, of_judge = sgd(model.maker), sgd(model.judge)
    for _ in range(STEPS):
        step(of_judge, model(torch.randn(8, 3), cut=True).mean() - model.judge(torch.randn(8, 2)).mean())
        step(of_maker, -model(torch.randn(8, 3), cut=False).mean())


def sparse_rewards() -> None:
    """Values of states that are nearly all 0, learned from a copy of the model."""
    model = net(2, 16, 2)
    target, optimizer = copy.deepcopy(model), sgd(model, 0.01)
    for number in range(120):
        state, action = torch.rand(16, 2), torch.randint(2, (16, 1))
        with torch.no_grad():
            wanted = (state[:, :1] > 0.95).float() + 0.9 * target(state).amax(1, keepdim=True)
        step(optimizer, F.mse_loss(model(state).gather(1, action), wanted))
        if number % 50 == 49:
            target.load_state_dict(model.state_dict())


def one_batch_of_a_loader() -> None:
    """Overfitting one batch, to see whether the model can learn."""
    loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(4, (64,))), 8, shuffle=True)
    x, y = next(iter(loader))
    model = net(6, 16, 4)
    optimizer = sgd(model)
    for _ in range(STEPS):
        step(optimizer, F.cross_entropy(model(x.float() * 1.0), y))


def warmed_up() -> None:
    """A learning rate that has only begun to rise."""
    model = net(6, 16, 4)
    optimizer = sgd(model)
    for number in range(120):
        optimizer.param_groups[0]["lr"] = 1e-5 * (number + 1)
        step(optimizer, F.cross_entropy(model(torch.randn(16, 6)), torch.randint(4, (16,))))


def carried() -> None:
    """A recurrent state that goes from step to step, detached."""
    model, head = nn.GRU(3, 8, batch_first=True), nn.Linear(8, 2)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.05)
    state = torch.zeros(1, 4, 8)
    for _ in range(STEPS):
        out, state = model(torch.randn(4, 5, 3), state.detach())
        step(optimizer, head(out).square().mean())


def every_other_step() -> None:
    """An optimizer that changes weights in some of its steps alone."""

    class Gathering(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            self.calls += 1
            return super().step(closure) if self.calls % 3 == 0 else None

    model = net(6, 16, 4)
    optimizer = Gathering(model.parameters(), 0.05)
    for _ in range(3 * STEPS):
        step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(4, (8,))))


def alternating() -> None:
    """Blocks that are frozen by turns."""
    model = net(6, 8, 8, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for number in range(STEPS):
        for place, layer in enumerate(model):
            layer.requires_grad_(place == 2 * (number % 4) or place == 6)
        step(optimizer, F.cross_entropy(model(torch.randn(8, 6)), torch.randint(4, (8,))))


def sampled() -> None:
    """After LISA: one block, another one for a few steps each, is frozen."""
    model = net(8, 8, 8, 8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for number in range(STEPS):
        for place, layer in enumerate(model):
            layer.requires_grad_(place != 2 * (1 + number // 3 % 2))
        step(optimizer, F.cross_entropy(model(torch.randn(8, 8)), torch.randint(8, (8,))))


PROGRAMS: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        *(first_token, policy, attacked, probe, pair, sparse_rewards, one_batch_of_a_loader, warmed_up, carried),
        *(every_other_step, alternating, sampled),
    )
}


OTHERS = ("carried", "pair", "every_other_step", "sparse_rewards", "warmed_up")


@pytest.mark.parametrize("program", [swept(n) if n in OTHERS else n for n in PROGRAMS])
def test_nothing_is_said_of_a_correct_training(program: str) -> None:
    every = 4 if program in ("sparse_rewards", "warmed_up") else 1  # which are long
    assert not [*faults(measured(observed(PROGRAMS[program], every=every)))]
