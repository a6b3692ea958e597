"""Gradients that are never cleared, in many kinds of training; and trainings that clear them in their own way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.checks import GradientsNotCleared
from hookcli.capabilities.learn.lines import Learning
from hookcli.checks.measurements import Measurements
from hookcli.table.losses import LossCourse

STEPS = 6
Clear = Callable[[], object]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def loss_of(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(torch.randn(12, 6)), torch.randint(4, (12,)))


def found(program: Callable[[], Any], **plan: Any) -> list[str]:
    """What the check says of each model of the program that has a line."""
    seen = observed(program, **plan)
    said = []
    for model in seen.ran:
        lines = {Learning.kind: [x for x in seen.of_parts if isinstance(x, Learning) and x.model == model]}
        said += [one.message for one in GradientsNotCleared().judge(Measurements(lines=lines, losses=LossCourse()))]
    return said


def sgd(clears: bool, make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> nn.Module:
    model = net()
    optimizer = make(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        if clears:
            optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return model


def accumulated(clears: bool) -> nn.Module:
    """Four micro-batches a step."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        for _ in range(2):
            (loss_of(model) / 4).backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()
    return model


def by_closure(clears: bool) -> nn.Module:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
    x, y = torch.randn(12, 6), torch.randint(4, (12,))

    def closure() -> Tensor:
        if clears:
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return model


def scaled(clears: bool) -> nn.Module:
    model = net()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu")
    for _ in range(STEPS):
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        if clears:
            optimizer.zero_grad(set_to_none=False)
    return model


def head_alone(clears: bool) -> nn.Module:
    """The gradients of the body, which nobody trains, pile up in both."""
    model = net()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01)
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad(set_to_none=False)
    return model


def two_losses(clears: bool) -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        if clears:
            model.zero_grad()
        loss_of(model).backward()
        model(torch.randn(3, 6)).square().mean().backward()
        optimizer.step()
    return model


def without_optimizer(clears: bool) -> nn.Module:
    """The program updates the weights itself."""
    model = net()
    for _ in range(STEPS):
        loss_of(model).backward()
        with torch.no_grad():
            for p in model.parameters():
                assert p.grad is not None
                p -= 0.01 * p.grad
                if clears:
                    p.grad.zero_()
    return model


KINDS = {f.__name__: f for f in (without_optimizer, sgd, accumulated, by_closure, scaled, head_alone, two_losses)}


@pytest.mark.parametrize("kind", [n if n in ("sgd", "accumulated", "without_optimizer") else swept(n) for n in KINDS])
def test_gradients_that_are_never_cleared_are_found(kind: str) -> None:
    (said,) = found(lambda: KINDS[kind](False))
    assert said.startswith("gradients are never cleared") and said.endswith(f"each of {STEPS - 1} recorded steps")
    assert not found(lambda: KINDS[kind](True))


@pytest.mark.sweep
@pytest.mark.parametrize("make", [torch.optim.Adam, swept(torch.optim.RMSprop), swept(torch.optim.Adagrad)])
def test_with_each_optimizer(make: Callable[..., torch.optim.Optimizer]) -> None:
    assert found(lambda: sgd(False, make)) and not found(lambda: sgd(True, make))


def test_two_steps_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "STEPS", 2)
    assert not found(lambda: sgd(False))


def gan() -> list[nn.Module]:
    """The generator's pass leaves gradients in the discriminator, which are cleared only before its own."""
    made, judge = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)), nn.Sequential(nn.Linear(6, 1))
    of_made, of_judge = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (made, judge))
    for _ in range(STEPS):
        of_made.zero_grad()
        judge(made(torch.randn(4, 3))).mean().neg().backward()
        of_made.step()
        of_judge.zero_grad()
        (judge(torch.randn(4, 6)) - judge(made(torch.randn(4, 3)).detach())).mean().backward()
        of_judge.step()
    return [made, judge]


def sharpness_aware() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, y = torch.randn(12, 6), torch.randint(4, (12,))
        F.cross_entropy(model(x), y).backward()
        climbed = [p.grad * 0.05 for p in model.parameters() if p.grad is not None]
        with torch.no_grad():
            for p, way in zip(model.parameters(), climbed, strict=True):
                p.add_(way)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for p, way in zip(model.parameters(), climbed, strict=True):
                p.sub_(way)
        optimizer.step()
        optimizer.zero_grad()
    return model


def one_clears_for_two() -> nn.Module:
    model = net()
    body, head = (torch.optim.SGD(part.parameters(), lr=0.01) for part in (model[0], model[2]))
    for _ in range(STEPS):
        model.zero_grad()
        loss_of(model).backward()
        body.step()
        head.step()
    return model


def head_every_third() -> nn.Module:
    """The head's gradients pile up on purpose, while the body makes a step each time."""
    model = net()
    body, head = (torch.optim.SGD(part.parameters(), lr=0.01) for part in (model[0], model[2]))
    for step in range(3 * STEPS):
        body.zero_grad()
        loss_of(model).backward()
        body.step()
        if step % 3 == 2:
            head.step()
            head.zero_grad()
    return model


def written(write: Callable[[nn.Parameter], object]) -> nn.Module:
    """A training that writes to each parameter's gradient after a step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()
        for p in model.parameters():
            write(p)
    return model


def by_hand() -> nn.Module:
    return written(lambda p: setattr(p, "grad", None))


def cleared_by_a_hook() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.register_step_post_hook(lambda one, args, kwargs: one.zero_grad())
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()
    return model


def gradients_of_its_own() -> nn.Module:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        parameters = list(model.parameters())
        for p, grad in zip(parameters, torch.autograd.grad(loss_of(model), parameters), strict=True):
            p.grad = grad
        optimizer.step()
    return model


def float32_copies(replaces: bool) -> nn.Module:
    """The optimizer has copies of bfloat16 weights, whose gradients the program sets, or writes over."""
    model = net().to(torch.bfloat16)
    copies = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(copies, lr=0.01)
    for _ in range(STEPS):
        model.zero_grad()
        F.cross_entropy(model(torch.randn(12, 6).bfloat16()).float(), torch.randint(4, (12,))).backward()
        for copy, p in zip(copies, model.parameters(), strict=True):
            assert p.grad is not None
            if copy.grad is None or replaces:
                copy.grad = p.grad.float()
            else:
                copy.grad.copy_(p.grad)
        optimizer.step()
        with torch.no_grad():
            for copy, p in zip(copies, model.parameters(), strict=True):
                p.copy_(copy)
    return model


@pytest.mark.parametrize("replaces", [True, False])
def test_gradients_that_the_program_gives_to_copies_of_the_weights_are_not_accused(replaces: bool) -> None:
    assert not found(lambda: float32_copies(replaces))


def accumulated_by_hand() -> nn.Module:
    """Two passes before each update."""
    model = net()
    for step in range(2 * STEPS):
        (loss_of(model) / 2).backward()
        if step % 2:
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(0.01 * p.grad)
            model.zero_grad()
    return model


def summed_gradients() -> nn.Module:
    """The gradients of all batches are added up, as for a Fisher information, and nothing is trained."""
    model = net()
    for _ in range(STEPS):
        loss_of(model).backward()
    return model


def decayed(*, replaces: bool) -> nn.Module:
    """A training whose gradients decay after each step, like momentum that keeps no buffer."""

    def decay(p: nn.Parameter) -> None:
        assert p.grad is not None
        p.grad = p.grad * 0.9 if replaces else p.grad.mul_(0.9)

    return written(decay)


@pytest.mark.parametrize("every", [1, swept(3)])
@pytest.mark.parametrize(
    "program",
    [
        accumulated_by_hand,
        lambda: decayed(replaces=False),
        swept(lambda: decayed(replaces=True)),
        summed_gradients,
        swept(gan),
        sharpness_aware,
        one_clears_for_two,
        head_every_third,
        by_hand,
        cleared_by_a_hook,
    ],
)
def test_correct_trainings_are_not_accused(program: Callable[[], Any], every: int) -> None:
    assert not found(program, every=every)


def test_gradients_that_the_program_sets_itself_are_not_judged() -> None:
    assert not found(gradients_of_its_own)


def mean_loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets)


LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, int]]] = {
    "cross_entropy": (mean_loss, (4, 12)),
    "nll_loss": (lambda scores, y: F.nll_loss(F.log_softmax(scores, 1), y), (4, 12)),
    "positions": (lambda scores, y: F.cross_entropy(scores.view(3, 4, 4).mT, y.view(3, 4)), (4, 12)),
    "weighted": (lambda scores, y: F.cross_entropy(scores, y, weight=torch.tensor([1.0, 2, 3, 4])), (4, 12)),
    "sum": (lambda scores, y: F.cross_entropy(scores, y, reduction="sum"), (4, 12)),
    "doubled": (lambda scores, y: 2 * F.cross_entropy(scores, y), (4, 12)),
    "with a penalty": (lambda scores, y: F.cross_entropy(scores, y) + scores.square().mean(), (0, 0)),
    "of probabilities": (lambda scores, y: F.binary_cross_entropy(scores.sigmoid(), torch.ones_like(scores)), (0, 0)),
    "squares": (lambda scores, y: scores.square().mean(), (0, 0)),
    "none": (lambda scores, y: F.cross_entropy(scores, y, reduction="none").mean(), (4, 12)),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_number_of_classes_is_that_of_a_cross_entropy(loss: str) -> None:
    function, (classes, items) = LOSSES[loss]

    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            function(model(torch.randn(12, 6)), torch.randint(4, (12,))).backward()
            optimizer.step()
        return model

    lines = [line for line in observed(program).of_parts if isinstance(line, Learning)]
    assert [(line.classes, line.items) for line in lines] == [(classes, items), (0, 0), (0, 0)]
    assert math.log(4) == pytest.approx(mean_loss(torch.zeros(12, 4), torch.randint(4, (12,))).item())
