"""Programs that work, of whose recorded steps together the checks say nothing."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from record.observe.measurements.judged import (
    Program,
    Scores,
    actions_that_are_not_allowed,
    found,
    hidden,
    net,
    scored,
    steps,
    trained,
)
from support import swept
from torch import Tensor, nn


def two_optimizers_in_turns() -> nn.Module:
    model = net()
    often = torch.optim.Adam(model[3].parameters(), 1e-3)
    seldom = torch.optim.Adam([*model[0].parameters(), *model[1].parameters()], 1e-3)
    for number, _ in enumerate(steps(model, 9)):
        often.step()
        if number % 5 == 0:
            seldom.step()
    return model


def gradients_that_the_program_clears() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in steps(model):
        for parameter in model[3].parameters():
            parameter.grad = None
        optimizer.step()
    return model


def updates_by_hand() -> nn.Module:
    model = net()
    for _ in steps(model):
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.1)
    return model


def float32_masters() -> nn.Module:
    """The optimizer has copies in more bits, which the program rounds into the model."""
    model = net(dtype=torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(masters, 1e-4)
    for _ in steps(model, 20):
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
    return model


def gradients_for_inputs_alone() -> nn.Module:
    model = net()
    list(steps(model))
    return model


def a_frozen_part() -> nn.Module:
    model = net()
    model[0].requires_grad_(False)
    return trained(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1))


def a_layer_that_is_drawn() -> nn.Module:
    """Another branch in each step, as a mixture of experts has: each gets a gradient in some steps."""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branches, self.count = nn.ModuleList(nn.Linear(8, 3) for _ in range(2)), 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            y: Tensor = self.branches[self.count % 2](x)
            return y

    model = Branches()
    return trained(model, torch.optim.SGD(model.parameters(), 0.1))


def a_body_without_gradients() -> nn.Module:
    """Its parameters still require gradients: the program leaves them out of the optimizer."""

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                features = self.body(x).tanh()
            y: Tensor = self.head(features)
            return y

    model = Probe()
    return trained(model, torch.optim.SGD(model.head.parameters(), 0.1))


def a_critic() -> nn.Module:
    """The gradients of its last bias, which are 1 and -1 for each pair, cancel."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(10):
        model.zero_grad()
        (model(torch.randn(32, 8)).mean() - model(1 + torch.randn(32, 8)).mean()).backward()
        optimizer.step()
    return model


def gradients_that_are_given_back() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in steps(model, 12):
        gradients = [parameter.grad for parameter in model.parameters()]
        optimizer.zero_grad()
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return model


def an_optimizer_that_clears_alone() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        model(torch.randn(32, 8)).square().mean().backward()
        for parameter in model.parameters():
            parameter.data.sub_(0.1 * parameter.grad)
        optimizer.zero_grad()
    return model


def a_few_gradients_without_a_step() -> nn.Module:
    model = net()
    model.optimizer = torch.optim.SGD(model.parameters(), 0.1)  # it lives
    for _ in steps(model, 4):
        pass
    return model


def a_long_accumulation() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(12):
        model(torch.randn(32, 8)).square().mean().backward()
        if number == 10:
            optimizer.step()
            optimizer.zero_grad()
    return model


def a_mask_in_a_later_micro_batch() -> nn.Module:
    model = Scores(lambda y, number, _: hidden(y) if number == 2 else y.masked_fill(torch.arange(5) > 9, -math.inf))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        optimizer.zero_grad()
        for number in range(3):
            model(torch.randn(4, 8), number).softmax(-1).square().mean().backward()
        optimizer.step()
    return model


def a_target_network() -> nn.Module:
    model = Scores(lambda y, *_: hidden(y))
    target, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        with torch.no_grad():
            value = target(torch.randn(32, 8)).amax(1)
        optimizer.zero_grad()
        (model(torch.randn(32, 8))[:, 0] - value).square().mean().backward()
        optimizer.step()
    return model


def a_frozen_router() -> nn.Module:
    router = Scores(lambda y, *_: hidden(y)).requires_grad_(False)
    model = nn.ModuleDict({"router": router, "head": nn.Linear(5, 2)})

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = model["head"](model["router"](x).softmax(-1))
            return y

    return scored(Routed())


def a_pool_over_tokens() -> nn.Module:
    model = nn.Sequential(Scores(lambda y, *_: y[..., :1].masked_fill(torch.arange(6)[:, None] > 3, -math.inf)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        optimizer.zero_grad()
        (model(h := torch.randn(4, 6, 8)).softmax(1) * h).sum(1).square().mean().backward()
        optimizer.step()
    return model


def gradients_of_inputs_in_eval_mode() -> nn.Module:
    model = net().eval()
    model.optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8):
        model.zero_grad()
        model(torch.randn(4, 8, requires_grad=True)).square().mean().backward()
    return model


@pytest.mark.parametrize(
    "program",
    [
        swept(a_mask_in_a_later_micro_batch),
        swept(a_target_network),
        swept(a_frozen_router),
        swept(a_pool_over_tokens),
        swept(gradients_of_inputs_in_eval_mode),
        swept(an_optimizer_that_clears_alone),
        a_few_gradients_without_a_step,
        swept(a_long_accumulation),
        swept(actions_that_are_not_allowed),
        swept(two_optimizers_in_turns),
        swept(a_body_without_gradients),
        swept(a_critic),
        swept(gradients_that_are_given_back),
        swept(gradients_that_the_program_clears),
        swept(updates_by_hand),
        swept(float32_masters),
        swept(gradients_for_inputs_alone),
        swept(a_frozen_part),
        swept(a_layer_that_is_drawn),
    ],
)
def test_programs_that_work_are_not_accused(program: Program) -> None:
    assert found(program) == {}
