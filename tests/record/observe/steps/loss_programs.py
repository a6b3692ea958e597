"""Programs that train in ways of their own, and the losses that they computed, by model."""

from __future__ import annotations

import math

import pytest
import torch
from record.observe.steps.loss_nets import X, loss_of, net
from torch import Tensor, nn

Losses = dict[str, list[float]]


def plain(steps: int = 4) -> Losses:
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, X)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"Sequential": losses}


def micro_batches() -> Losses:
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(4):
        parts = [loss_of(model, part) / 3 for part in X.chunk(3)]
        for part in parts:
            scaler.scale(part).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(sum(part.item() for part in parts))
    return {"Sequential": losses}


def steps_left_out_by_a_scaler() -> Losses:
    model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=2.0**127)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for number in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, X) * (1e30 if number < 3 else 1.0)
        scaler.scale(loss).backward()
        before = model[0].weight.detach().clone()
        scaler.step(optimizer)
        scaler.update(1.0 if number == 2 else None)
        if not before.equal(model[0].weight):
            losses.append(loss.item())
    assert len(losses) == 3
    return {"Sequential": losses}


def several_roots() -> Losses:
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    for _ in range(3):
        optimizer.zero_grad()
        y = model(X)
        torch.autograd.backward([y.sum(), y.mean()], [None, torch.tensor(3.0)], retain_graph=True)
        y.backward(torch.zeros_like(y))  # no number
        losses.append((y.sum() + 3 * y.mean()).item())
        optimizer.step()
    return {"Sequential": losses}


def limited_to_inputs() -> Losses:
    """Parameters come from an iterator, which can be read only once, as do losses and their weights."""
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(4):
        optimizer.zero_grad()
        y, x = model(X), X.clone().requires_grad_()
        roots = [y.sum(), y.mean()]
        torch.autograd.backward(iter(roots), map(torch.tensor, (1.0, 3.0)), inputs=model[0].parameters())
        loss_of(model, x).backward(inputs=[x])  # leaves no gradient in the model
        optimizer.step()
        losses.append((roots[0] + 3 * roots[1]).item())
    return {"Sequential": losses}


def refused() -> Losses:
    """PyTorch refuses backward passes with such gradients, and the program goes on."""
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, X)
        for gradient in (torch.ones(3), torch.tensor(1j), 1.0, [1.0], ["x"]):
            with pytest.raises((RuntimeError, TypeError)):
                torch.autograd.backward(loss, gradient)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"Sequential": losses}


def closures() -> Losses:
    model, losses = net(), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for _ in range(3):
        evaluated = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, X)
            loss.backward()
            evaluated.append(loss.item())  # noqa: B023
            return loss

        optimizer.step(closure)
        losses.append(evaluated[-1])
    return {"Sequential": losses}


class Generator(nn.Linear): ...


class Discriminator(nn.Linear): ...


def gan() -> Losses:
    torch.manual_seed(0)
    g, d = Generator(3, 4), Discriminator(4, 1)
    of_g, of_d = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (g, d))
    losses: Losses = {"Generator": [], "Discriminator": []}
    for _ in range(4):
        of_d.zero_grad()
        real, fake = -d(X).mean(), d(g(torch.randn(12, 3)).detach()).mean()
        real.backward()
        fake.backward()
        of_d.step()
        of_g.zero_grad()
        loss = -d(g(torch.randn(12, 3))).mean()
        loss.backward()  # through the discriminator, too
        of_g.step()
        losses["Generator"].append(loss.item())
        losses["Discriminator"].append(real.item() + fake.item())
    return losses


def an_optimizer_for_each_part() -> Losses:
    torch.manual_seed(0)
    a, b = Generator(4, 3), Discriminator(3, 1)
    optimizers, losses = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (a, b)], []
    for _ in range(3):
        loss = b(a(X)).pow(2).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return {"Generator": losses, "Discriminator": losses}


def both_losses_before_both_steps() -> Losses:
    torch.manual_seed(0)
    models = Generator(4, 1), Discriminator(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    losses: Losses = {"Generator": [], "Discriminator": []}
    for _ in range(4):
        of_each = [(model(X) - shift).square().mean() for shift, model in enumerate(models)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        for loss in of_each:
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        for values, loss in zip(losses.values(), of_each, strict=True):
            values.append(loss.item())
    return losses


def cleared(set_to_none: bool) -> Losses:
    """Adversarial inputs: the gradients of the passes that find these are cleared."""
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(4):
        change = torch.zeros_like(X).requires_grad_()
        for _ in range(3):
            loss_of(model, X + change).backward()
            assert change.grad is not None
            change.data += 0.1 * change.grad.sign()
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = loss_of(model, X + change.detach())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"Sequential": losses}


def cleared_to_none() -> Losses:
    return cleared(set_to_none=True)


def cleared_to_zero() -> Losses:
    return cleared(set_to_none=False)


def steps_left_out_by_the_program() -> Losses:
    """As many do where a gradient is NaN: no step took that loss."""
    model = net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for number in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, X) * (math.nan if number in (2, 3) else 1.0)
        loss.backward()
        if not nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
            continue
        optimizer.step()
        losses.append(loss.item())
    return {"Sequential": losses}


def by_hand() -> Losses:
    model, losses = net(), []
    for _ in range(4):
        loss = loss_of(model, X)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        losses.append(loss.item())
    return {"Sequential": losses}
