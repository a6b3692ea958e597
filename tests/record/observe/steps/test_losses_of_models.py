"""Which gradients are of a step, and which losses of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed, observing, rows
from record.observe.steps.loss_nets import CLEARING, X, loss_of, net
from support import swept
from torch import Tensor, nn


@pytest.mark.sweep
@pytest.mark.parametrize("clear", CLEARING)
def test_gradients_that_are_cleared_between_passes_are_of_no_step(clear: Callable[[nn.Module], None]) -> None:
    """A sharpness-aware optimizer looks at the gradients of a first pass, and steps by those of a second."""

    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss_of(model, X[:4]).backward()
            clear(model)
            for part in X[4:].chunk(2):
                (loss_of(model, part) / 2).backward()
            optimizer.step()
            clear(model)
        return model

    recorded = observed(program).recorded[0]
    assert recorded.loss == pytest.approx(loss_of(net().double(), X[4:].double()).item(), rel=1e-6)


def test_gradients_that_are_zero_by_themselves_are_not_cleared() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(3):
            (model(X).sum() * 0 + number).backward()
        optimizer.step()
        return model

    assert observed(program).only.losses == [0, 1, 2]


def freeze(critic: nn.Module) -> Callable[[Tensor], None]:
    def through(loss: Tensor) -> None:
        loss.backward()
        critic.requires_grad_(True)

    critic.requires_grad_(False)
    return through


PAST_THE_CRITIC: dict[str, Callable[[nn.Module, nn.Module], Callable[[Tensor], Any]]] = {
    "cleared": lambda critic, maker: lambda loss: loss.backward(),
    "frozen": lambda critic, maker: freeze(critic),
    "inputs": lambda critic, maker: lambda loss: loss.backward(inputs=list(maker.parameters())),
}


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("how", "clear"),
    [
        (how, clear) if number == which else swept(how, clear)
        for number, how in enumerate(PAST_THE_CRITIC)
        for which, clear in enumerate(CLEARING)
    ],
)
def test_each_model_of_a_gan_has_the_losses_of_its_own_gradients(how: str, clear: Callable[[nn.Module], None]) -> None:
    """Gradients are cleared after each step, and where the maker's pass leaves some in the critic, before its next."""
    losses: dict[str, list[float]] = {}

    def program() -> tuple[nn.Module, nn.Module]:
        maker, critic = nn.Sequential(nn.Linear(2, 4)), nn.Linear(4, 1)
        g, c = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (maker, critic))
        losses.update(real=[], fake=[], maker=[])
        for _ in range(3):
            made = maker(torch.randn(5, 2))
            if how == "cleared":
                clear(critic)
            real, fake = -critic(torch.randn(5, 4)).mean(), critic(made.detach()).mean()
            real.backward()
            fake.backward()
            c.step()
            clear(critic)
            backward = PAST_THE_CRITIC[how](critic, maker)
            loss = -critic(made).mean()
            backward(loss)
            g.step()
            clear(maker)
            for name, value in (("real", real), ("fake", fake), ("maker", loss)):
                losses[name].append(value.item())
        return maker, critic

    seen = observed(program)
    assert [w.losses for w in seen.of("Sequential")] == [[loss] for loss in losses["maker"]]
    whole = [w for w in seen.of("Linear") if w.complete]
    assert [w.losses for w in whole] == [list(pair) for pair in zip(losses["real"], losses["fake"], strict=True)]


@pytest.mark.parametrize("kind", ["outputs", "nothing"])
def test_a_frozen_model_without_an_optimizer_has_the_loss_of_what_passes_through_it(kind: str) -> None:
    def program() -> nn.Module:
        model = net().requires_grad_(kind == "nothing")
        x = X.clone().requires_grad_()
        loss_of(model, x).backward(inputs=[x])
        return model

    recorded = observed(program).only
    assert recorded.loss == pytest.approx(loss_of(net(), X).item()) and "2" in rows(recorded, "grads", "output")


def test_the_first_loss_that_is_not_finite_among_accumulated_ones() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(2):
            for part in range(3):
                loss = model(X).sum() * 0 + 1
                (loss * (float("nan") if (number, part) == (1, 1) else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model

    with observing(first_bad="report", probes=("activations",)) as seen:
        program()
    (bad,) = seen.non_finites
    assert (bad.step, bad.what, bad.nan, bad.inf) == (1, "loss", 1, 0)
    assert seen.recorded[0].loss == 3 and str(seen.recorded[1].loss) == "nan"
