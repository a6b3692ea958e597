"""The loss of a step: of several passes, of several losses, and of none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from observing import observed
from record.observe.steps.loss_nets import CLEARING, X, loss_of, net
from torch import Tensor, nn


@pytest.mark.sweep
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


@pytest.mark.sweep
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


@pytest.mark.sweep
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
