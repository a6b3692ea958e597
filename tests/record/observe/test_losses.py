"""The loss of a step is the sum of what backward() was called on whose gradients the optimizer gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed, observing, rows
from torch import Tensor, nn

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(3))


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).pow(2).mean()


@pytest.mark.parametrize("scaled", [False, True])
def test_of_micro_batches_it_is_the_loss_of_the_batch(scaled: bool) -> None:
    """Each is divided by their number, as in nanoGPT; the scale is a power of two, which loses nothing."""

    def program() -> nn.Module:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for part in X.chunk(3):
                scaler.scale(loss_of(model, part) / 3).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return model

    first, second = observed(program).recorded
    assert first.loss == pytest.approx(loss_of(net().double(), X.double()).item(), rel=1e-6)
    assert len(first.losses) == len(second.losses) == 3 and second.loss < first.loss


def test_of_several_losses_of_one_forward_it_is_their_sum() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        y = model(X)
        y.sum().backward(retain_graph=True)
        torch.autograd.backward([y.mean() * 4, (y * 0).sum() + 1])
        optimizer.step()
        return model

    recorded, y = observed(program).only, net().double()(X.double())
    assert recorded.losses == pytest.approx([y.sum().item(), y.mean().item() * 4 + 1], rel=1e-5)
    assert recorded.loss == pytest.approx(sum(recorded.losses))


def test_a_loss_with_a_gradient_of_its_own_counts_by_that() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss_of(model, X).backward(torch.tensor(0.25))
        y = model(X)
        torch.autograd.backward([y.sum(), y.mean()], [None, torch.tensor(3.0)])
        optimizer.step()
        return model

    recorded, model = observed(program).only, net().double()
    y = model(X.double())
    assert recorded.losses == pytest.approx([y.pow(2).mean().item() / 4, (y.sum() + 3 * y.mean()).item()], rel=1e-5)


def test_two_losses_that_a_scaler_made() -> None:
    def program() -> nn.Module:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        y = model(X)
        torch.autograd.backward(scaler.scale([y.pow(2).mean(), y.sum()]))
        scaler.step(optimizer)
        scaler.update()
        return model

    recorded, y = observed(program).only, net().double()(X.double())
    assert recorded.loss == pytest.approx((y.pow(2).mean() + y.sum()).item(), rel=1e-5)


def test_a_tensor_of_several_numbers_is_no_loss_and_that_is_said() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        y = model(X)
        y.sum().backward(retain_graph=True)
        y.backward(torch.ones_like(y))
        optimizer.step()
        optimizer.zero_grad()
        (model(X) * 1j).backward(torch.ones(12, 2, dtype=torch.complex64))
        (model(X[:1, :]).sum() * 1j).backward(torch.tensor(1j))
        optimizer.step()
        return model

    first, second = observed(program).recorded
    assert first.losses == pytest.approx([net()(X).sum().item()]) and second.loss is None
    assert all("not a single number" in " ".join(recorded.notes) for recorded in (first, second))


def none(model: nn.Module) -> None:
    model.zero_grad()


def zero(model: nn.Module) -> None:
    model.zero_grad(set_to_none=False)


def by_hand(model: nn.Module) -> None:
    for p in model.parameters():
        if p.grad is not None:
            p.grad.data.zero_()  # no version tells of it


CLEARING = [none, zero, by_hand]


@pytest.mark.parametrize("clear", CLEARING)
def test_of_a_closure_it_is_that_of_the_last_evaluation(clear: Callable[[nn.Module], None]) -> None:
    evaluated: list[float] = []

    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

        def closure() -> Tensor:
            clear(model)
            loss = loss_of(model, X)
            loss.backward()
            evaluated.append(loss.item())
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return model

    seen = observed(program)
    evaluated = evaluated[: len(evaluated) // 2]  # the first program's
    assert len(evaluated) == 8 and len(set(evaluated)) == 8
    assert [recorded.losses for recorded in seen.recorded] == [[evaluated[3]], [evaluated[7]]]


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


@pytest.mark.parametrize("clear", CLEARING)
@pytest.mark.parametrize("how", PAST_THE_CRITIC)
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
