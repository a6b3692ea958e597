"""Weights that a program sets anew between steps, and those that it changes on purpose. Labels are random here."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from capabilities.learn.test_misused import all_faults, net
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.causes import overwritten
from hookcli.capabilities.learn.lines import Learning
from hookcli.capabilities.learn.weights.overwritten import Overwritten
from hookcli.capabilities.learn.weights.still import first_values

EPOCHS, STEPS = 6, 8
LR = 0.05
Batches = Iterator[tuple[Tensor, Tensor]]


def epoch() -> Batches:
    for _ in range(STEPS):
        yield torch.randn(32, 6), torch.randint(3, (32,))


def sgd(model: nn.Module, momentum: float = 0.9) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), LR, momentum=momentum)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches) -> None:
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def begun_anew(change: Callable[[nn.Sequential], object], *, each_step: bool = False) -> Callable[[], nn.Module]:
    """A program that changes its model before each epoch, or each step."""

    def program() -> nn.Module:
        model = net()
        optimizer = sgd(model)
        start = copy.deepcopy(model.state_dict())
        model.start = lambda: model.load_state_dict(start)
        for _ in range(EPOCHS):
            change(model)
            for batch in epoch():
                if each_step:
                    change(model)
                steps(model, optimizer, iter([batch]))
        return model

    return program


def drawn_again(model: nn.Sequential) -> None:
    for layer in (model[0], model[2]):
        layer.reset_parameters()


@pytest.mark.parametrize(
    ("program", "seen"),
    [
        (
            begun_anew(drawn_again),
            "the program itself sets weights anew again and again (seen 5 times, ",
        ),
        (
            begun_anew(lambda model: model.start()),
            "the weights are set back to their values of step 0 again and again (seen 5",
        ),
        (
            lambda: averaged(0.001, stays=True),
            "the weights are set back next to their values of step 0 again and again (seen 5",
        ),
        swept(
            begun_anew(lambda model: model.start(), each_step=True),
            "the weights are set back to their values of step 0",
        ),
        swept(begun_anew(lambda model: nn.init.xavier_uniform_(model[2].weight), each_step=True), "2.weight moves by"),
    ],
)
@pytest.mark.parametrize("every", [1, swept(5)])
def test_weights_that_begin_anew(program: Callable[[], nn.Module], seen: str, every: int) -> None:
    """The first draw comes before the first step; every fifth step is not always the first of an epoch."""
    (text, *_) = all_faults(program, every=every)
    assert seen in text if every == 1 else "again and again" in text or "2.weight" in seen


def averaged(share: float = 0.1, *, stays: bool = False) -> nn.Module:
    """A moving average of the weights is swapped in for the validation in each epoch, and back unless it `stays`."""
    model = net()
    average, optimizer = copy.deepcopy(model), sgd(model)
    for _ in range(EPOCHS):
        for batch in epoch():
            steps(model, optimizer, iter([batch]))
            with torch.no_grad():
                for a, p in zip(average.parameters(), model.parameters(), strict=True):
                    a.lerp_(p, share)
        kept = copy.deepcopy(model.state_dict())
        model.load_state_dict(average.state_dict())
        with torch.no_grad():
            model(torch.randn(32, 6))
        if not stays:
            model.load_state_dict(kept)
    return model


def uphill() -> nn.Module:
    """SAM: the second pass of each step is at other weights."""
    model = net()
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y in epoch():
            F.cross_entropy(model(x), y).backward()
            size = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
            ways = [0.5 * p.grad / size for p in model.parameters() if p.grad is not None]
            with torch.no_grad():
                torch._foreach_add_([*model.parameters()], ways)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                torch._foreach_sub_([*model.parameters()], ways)
            optimizer.step()
            optimizer.zero_grad()
    return model


def after_each_step(change: Callable[[Tensor], object]) -> Callable[[], nn.Module]:
    def program() -> nn.Module:
        model = net()
        optimizer = sgd(model)
        for _ in range(EPOCHS):
            for batch in epoch():
                steps(model, optimizer, iter([batch]))
                with torch.no_grad():
                    for p in model.parameters():
                        change(p)
        return model

    return program


def reptile() -> nn.Module:
    """The weights go back a part of the way after each task."""
    model = net()
    optimizer = sgd(model, 0.0)
    for _ in range(EPOCHS):
        before = [p.detach().clone() for p in model.parameters()]
        steps(model, optimizer, epoch())
        with torch.no_grad():
            for old, p in zip(before, model.parameters(), strict=True):
                p.copy_(old + 0.3 * (p - old))
    return model


def first_order() -> nn.Module:
    """Of two tasks, each begins at the same weights, which then move on."""
    model = net()
    optimizer = sgd(model, 0.0)
    for _ in range(EPOCHS):
        before, gains = [p.detach().clone() for p in model.parameters()], []
        for _ in range(2):
            with torch.no_grad():
                for old, p in zip(before, model.parameters(), strict=True):
                    p.copy_(old)
            steps(model, optimizer, epoch())
            gains.append([p.detach() - old for old, p in zip(before, model.parameters(), strict=True)])
        with torch.no_grad():
            for old, p, a, b in zip(before, model.parameters(), *gains, strict=True):
                p.copy_(old + (a + b) / 4)
    return model


def binary() -> nn.Module:
    """Weights are rounded to their signs in each pass, and put back before the step."""
    model = net()
    optimizer = sgd(model)
    for _ in range(EPOCHS):
        for x, y in epoch():
            kept = [p.detach().clone() for p in model.parameters()]
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(p.sign())
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            with torch.no_grad():
                for p, values in zip(model.parameters(), kept, strict=True):
                    p.copy_(values)
            optimizer.step()
    return model


def folds() -> nn.Module:
    """Cross-validation, with a new optimizer for each fold."""
    model = net()
    for _ in range(EPOCHS):
        drawn_again(model)
        steps(model, sgd(model), epoch())
    return model


def set_back() -> nn.Module:
    """Cross-validation: the model and its optimizer are both set back to how they began."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), LR)
    start, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    for _ in range(EPOCHS):
        model.load_state_dict(start)
        optimizer.load_state_dict(copy.deepcopy(state))
        steps(model, optimizer, epoch())
    return model


def best() -> nn.Module:
    """The best weights are loaded in the end, and at every plateau before."""
    model = net()
    optimizer = sgd(model)
    kept = copy.deepcopy(model.state_dict())
    for number in range(EPOCHS):
        steps(model, optimizer, epoch())
        if number == 0:
            kept = copy.deepcopy(model.state_dict())
        elif number % 2:
            model.load_state_dict(kept)
    return model


@pytest.mark.parametrize(
    "program",
    [
        averaged,
        swept(lambda: averaged(0.001)),
        swept(lambda: averaged(0.5, stays=True)),  # as Lookahead does
        swept(uphill),
        swept(after_each_step(lambda p: p.clamp_(-0.01, 0.01))),  # WGAN's critic
        swept(after_each_step(lambda p: p.div_(p.norm()))),
        swept(reptile),
        swept(first_order),
        swept(binary),
        *(folds, set_back),
        swept(best),
    ],
)
def test_weights_that_are_changed_on_purpose(program: Callable[[], nn.Module]) -> None:
    assert not [text for text in all_faults(program) if "again and again" in text]


@pytest.mark.sweep
def test_what_is_learned_in_spite_of_it_is_not_named() -> None:
    """The labels can be learned within an epoch, and the loss is lower in the end."""

    def program() -> nn.Module:
        model = net()
        optimizer = sgd(model)
        for number in range(EPOCHS):
            if number < EPOCHS // 2 + 1:
                drawn_again(model)
            x = torch.randn(STEPS, 32, 6)
            steps(model, optimizer, zip(x, x[..., :3].argmax(-1), strict=True))
        return model

    assert not all_faults(program)


def test_how_far_a_weight_moves_is_counted_by_hand() -> None:
    """A single weight, that is doubled and turned before each step but the first, and hardly moved by a step."""
    moved = []

    def program() -> nn.Module:
        model = nn.Linear(4, 3, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        for number in range(4):
            if number:
                before = model.weight.detach().clone()
                with torch.no_grad():
                    model.weight.mul_(-2)
                moved.append(((model.weight - before).norm() / before.norm()).item())
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(16, 4)), torch.randint(3, (16,))).backward()
            optimizer.step()
        return model

    lines = [one for one in observed(program).of_parts if isinstance(one, Learning)]
    assert [line.overwritten for line in lines] == [0, 1, 2, 3]
    assert lines[-1].away == pytest.approx(moved[-1], rel=1e-5) == pytest.approx(3.0)
    assert lines[-1].weight == "weight" and lines[-1].written_at == 3 and not lines[-1].restored


@pytest.mark.parametrize(("growth", "written"), [(1.2, False), (30.0, True)])
def test_steps_that_are_not_followed_are_no_writing_of_the_program(growth: float, written: bool) -> None:
    """Each step makes the weight a fifth larger; before the last, some are not followed, or the program writes."""
    model = nn.Linear(8, 8, bias=False)
    seen = Overwritten()

    def step() -> None:
        with torch.no_grad():
            model.weight.mul_(1.2)

    for number in range(4):
        began = {"weight": first_values(model.weight)}
        seen.note_pass(model)
        step()
        fields = seen.fields(number, began, began, {"weight": first_values(model.weight)})
    assert not fields
    for factor in (1.2, growth):
        with torch.no_grad():
            model.weight.mul_(factor)
        step()
        seen.note_pass(model)
        step()
    seen.note_passes(9)
    assert bool(seen.times) is written


@pytest.mark.parametrize(
    ("last", "written", "steps", "named"), [(80, 80, 180, True), (80, 30, 180, False), (30, 30, 180, False)]
)
def test_it_counts_how_late_in_the_recorded_steps_it_was_seen(last: int, written: int, steps: int, named: bool) -> None:
    lines = [Learning("Net", last, restored=5, written_at=written)]
    assert bool(overwritten(lines, steps)) is named
