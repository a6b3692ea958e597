"""Losses that get something else than they expect, signs, parts without gradients; each beside a correct sibling."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import cycle
from statistics import fmean
from typing import Any

import pytest
import torch
from capabilities.learn.test_parts import measured
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.headline import faults
from hookcli.capabilities.learn.judging.loss_checks import NoBetterThanGuessing
from hookcli.capabilities.learn.judging.misused_loss import MisusedLoss, collapsed
from hookcli.capabilities.learn.lines import Learning
from hookcli.capabilities.learn.losses.labels import are_blocks, are_in_turn
from hookcli.checks.measurements import Measurements
from hookcli.table.losses import LossCourse

STEPS = 16
Loss = Callable[[Tensor, Tensor], Tensor]


def all_faults(program: Callable[[], Any], **plan: Any) -> list[str]:
    return list(faults(measured(observed(program, **plan))))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def train(model: nn.Module, loss_of: Loss, *optimizers: torch.optim.Optimizer, lr: float = 0.05) -> nn.Module:
    """Labels that can be learned."""
    optimizers = optimizers or (torch.optim.SGD(model.parameters(), lr),)
    for _ in range(STEPS):
        x = torch.randn(32, 6)
        for one in optimizers:
            one.zero_grad()
        loss_of(model(x), x[:, :3].argmax(1)).backward()
        for one in optimizers:
            one.step()
    return model


def likelihood(outputs: Tensor, y: Tensor) -> Tensor:
    return F.log_softmax(outputs, 1).gather(1, y[:, None]).mean()


def binary(outputs: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs[:, 0], (y == 0).float())


def values(y: Tensor) -> Tensor:
    return y.float()[:, None]


def soft(y: Tensor) -> Tensor:
    return 0.7 * F.one_hot(y, 3) + 0.1


def kl(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.kl_div(outputs, targets, reduction="batchmean")


def contrastive(outputs: Tensor, times: float) -> Tensor:
    a, b = (F.normalize(x, dim=1) for x in (outputs, outputs + 0.1))
    return F.cross_entropy(a @ b.T * times, torch.arange(32))


LEAST = F.cross_entropy(0.05 * (2 * torch.eye(32) - 1), torch.arange(32)).item()
"""The loss of cosines that are as good as they can be."""
COSINES = f"cross_entropy gets cosine similarities times 0.05, so that its loss can't fall below {LEAST:.4g}"
KL_SOFTMAX = "kl_div gets the output of a softmax, and expects log-probabilities: use log_softmax instead"
KL_OVER = "kl_div compares a log_softmax over"
ROWS = "gather(0, index) of 32x3 values takes their first column from other rows, and all 32 indices are below 3"
PRODUCTS = (
    "the scores of cross_entropy are the 32x32 products of the rows of two batches, and all labels are one number"
)
SQUARE = "in the loss, outputs of shape 32x1 and other values are broadcast to 32x32"
ONE = "is taken over a dimension of one number (32x1), where it always is "
TWICE = "the output of a softmax goes into cross_entropy"


@pytest.mark.parametrize(
    ("loss_of", "expected"),
    [
        (F.cross_entropy, ""),
        (lambda o, y: F.cross_entropy(o.softmax(1), y), TWICE),
        swept(lambda o, y: 0.5 * F.cross_entropy(o.softmax(1), y) + 0.1 * o.square().mean(), TWICE),
        (lambda o, y: F.cross_entropy(o, o.detach().softmax(1)), ""),
        (lambda o, y: F.nll_loss(o.softmax(1), y), "the output of a softmax goes into nll_loss"),
        swept(lambda o, y: F.nll_loss(o.softmax(1).log(), y), ""),
        (lambda o, y: F.nll_loss(o.log_softmax(0), y), "log_softmax is taken over the rows of the batch"),
        swept(lambda o, y: F.nll_loss(o.log_softmax(-2), y), "log_softmax is taken over the rows of the batch"),
        (lambda o, y: F.nll_loss(o.log_softmax(-1), y), ""),
        (lambda o, y: F.nll_loss((o @ o.T).log_softmax(0), torch.arange(32)), ""),  # contrastive
        (lambda o, y: binary(o.sigmoid(), y), "the output of a sigmoid goes into binary_cross_entropy_with_logits"),
        swept(lambda o, y: F.binary_cross_entropy(o[:, 0].sigmoid(), (y == 0).float()), ""),
        (lambda o, y: -F.cross_entropy(o, y), "the loss is the negative of cross_entropy, which grows from"),
        swept(lambda o, y: -F.mse_loss(o[:, 0], y.float()), "the loss is the negative of mse_loss, which grows from"),
        swept(likelihood, "the loss is the negative of cross_entropy, which grows from"),
        swept(lambda o, y: -likelihood(o, y), ""),
        swept(lambda o, y: -(o.log_softmax(1).gather(1, y[:, None]) * torch.randn(32, 1)).mean(), ""),  # of a policy
        (lambda o, y: ((o[:, :1] - y.float()) ** 2).mean(), SQUARE),
        swept(lambda o, y: (y.float() - o[:, :1]).abs().sum(1).mean(), SQUARE),
        (lambda o, y: -(o.log_softmax(1).gather(1, y[:, None])[:, 0] * values(y)).mean(), SQUARE.replace("x1 ", " ")),
        (lambda o, y: F.l1_loss(*torch.broadcast_tensors(o[:, :1], y.float())), SQUARE),
        swept(lambda o, y: F.smooth_l1_loss(*torch.broadcast_tensors(o[:, :1], y.float())), SQUARE),
        swept(lambda o, y: F.huber_loss(*torch.broadcast_tensors(o[:, 0], values(y))), SQUARE.replace("x1 ", " ")),
        swept(lambda o, y: F.l1_loss(o[:, :1], values(y)), ""),
        (lambda o, y: F.cross_entropy(o[:, :1], y * 0), f"log_softmax {ONE}0: use"),
        (lambda o, y: F.binary_cross_entropy(o[:, :1].softmax(1), values(y).sign()), f"softmax {ONE}1: use"),
        swept(lambda o, y: F.mse_loss(o[:, :1].softmax(-1)[:, 0], y.float()), f"softmax {ONE}1: use"),
        (lambda o, y: -(o.softmax(0).log() * F.one_hot(y, 3)).sum(1).mean(), "softmax is taken over the rows"),
        swept(lambda o, y: F.mse_loss(o.softmax(0), F.one_hot(y, 3).float()), "softmax is taken over the rows"),
        swept(lambda o, y: -(o.softmax(1).log() * F.one_hot(y, 3)).sum(1).mean(), ""),
        swept(lambda o, y: F.mse_loss((o.softmax(0) * o).sum(0), torch.ones(3)), ""),  # the rows are weighed
        (lambda o, y: -(torch.randn(32, 3) * o.softmax(0)).sum(0).mean(), ""),  # the rows of constants
        (lambda o, y: -((o.log_softmax(0) + o.log_softmax(1)) * F.one_hot(y, 3)).sum(1).mean(), ""),  # both ways
        (lambda o, y: F.cross_entropy(o, y) + F.cross_entropy(o[:, :1], y * 0), ""),  # an attribute of one value
        (lambda o, y: kl(o.softmax(1), soft(y)), KL_SOFTMAX),
        swept(lambda o, y: 0.5 * F.cross_entropy(o, y) + 0.5 * 4 * kl((o / 2).softmax(-1), soft(y)), KL_SOFTMAX),
        swept(lambda o, y: F.kl_div(o.view(4, 8, 3).softmax(2), soft(y).view(4, 8, 3), reduction="sum"), KL_SOFTMAX),
        swept(lambda o, y: kl(o.softmax(1), (o / 2).softmax(1)), KL_SOFTMAX),  # targets with gradients
        (lambda o, y: kl(o + 5, soft(y)), "kl_div is below 0, as no divergence is: its input is no log-probabilities"),
        (lambda o, y: kl(o.log_softmax(1), (5 * soft(y)).softmax(0)), f"{KL_OVER} the classes (dim=1) with targets"),
        swept(lambda o, y: kl((o * 1).log_softmax(0), soft(y)), f"{KL_OVER} the rows of the batch (dim=0) with"),
        (lambda o, y: kl(o.log_softmax(1), soft(y)), ""),
        swept(lambda o, y: kl(o.softmax(1).log(), soft(y)), ""),
        swept(lambda o, y: kl(o - o.logsumexp(1, keepdim=True), o.detach().softmax(1)), ""),  # 0, but for rounding
        swept(lambda o, y: kl((o * 1).log_softmax(0), (5 * soft(y)).softmax(0)), ""),  # both over the rows
        swept(lambda o, y: F.kl_div(o.log_softmax(1), soft(y).log(), reduction="sum", log_target=True), ""),
        swept(lambda o, y: (torch.rand(32, 3) - F.one_hot(y, 3) * o.softmax(1)).mean(), ""),  # no divergence
        (lambda o, y: contrastive(o, 0.05), COSINES),
        swept(lambda o, y: (contrastive(o, 0.05) + contrastive(o.flip(0), 0.05)) / 2, COSINES),
        (lambda o, y: contrastive(o, 1.0), ""),  # with many rows the loss stays high, too: MoCo v3
        swept(lambda o, y: contrastive(o, 20.0), ""),
        swept(lambda o, y: F.cross_entropy(0.05 * (o @ o.T), torch.arange(32)), ""),  # no cosines
        (lambda o, y: F.cross_entropy(o @ o.tanh().T, y * 0), PRODUCTS),
        swept(lambda o, y: F.cross_entropy(o.mean().exp() * (F.normalize(o) @ o.T) / 0.1, y * 0), PRODUCTS),
        (lambda o, y: F.cross_entropy(o @ o.tanh().T, torch.arange(32)), ""),
        swept(lambda o, y: F.cross_entropy(torch.cat([o[:, :1], o @ o.T], 1)[:, :32], y * 0), ""),  # MoCo
        swept(lambda o, y: F.cross_entropy(o @ o.tanh().T, y), ""),
        (lambda o, y: F.smooth_l1_loss(o.gather(0, y[:, None])[:, 0], y.float()), ROWS),
        swept(lambda o, y: ((o.gather(-2, y[:, None]).squeeze(1) - y) ** 2).mean(), ROWS),
        swept(lambda o, y: (o.log_softmax(1).gather(0, y[:, None]) * torch.rand(32, 1)).mean(), ROWS),
        (lambda o, y: F.smooth_l1_loss(o.gather(1, y[:, None])[:, 0], y.float()), ""),
        swept(lambda o, y: F.mse_loss(o.gather(-1, y[:, None])[:, 0], y.float()), ""),
        (lambda o, y: F.mse_loss(o.gather(0, torch.randperm(32)[:, None]), values(y)), ""),  # other rows
        swept(lambda o, y: F.mse_loss(o.gather(0, y[:, None].expand(-1, 3)), values(y).expand(-1, 3)), ""),
        swept(lambda o, y: F.mse_loss(o[:, :1].gather(0, y[:, None] * 0), values(y)), ""),
        (lambda o, y: F.nll_loss(o + 3, y), "100.0% of what nll_loss gets for log-probabilities is above 0"),
        swept(lambda o, y: F.nll_loss(o - o.logsumexp(1, keepdim=True), y), ""),
        (
            lambda o, y: F.binary_cross_entropy_with_logits(o, torch.tensor([-1.0, 0, 1]).expand(32, 3)),
            "33.3% of the targets of binary_cross_entropy are not between 0 and 1",
        ),
        swept(
            lambda o, y: F.binary_cross_entropy_with_logits(o[:, 0], y.sign() + 0.2 * torch.randn(32)), ""
        ),  # on purpose
        (lambda o, y: ((o[:, :1] - values(y)) ** 2).mean(), ""),
        (lambda o, y: ((o[:, :1] - y.float()).square().mean() + 1e-6).sqrt(), "in the loss, outputs of shape 32x1 and"),
        swept(lambda o, y: (o[:, :1] - o[:, 0]).square().mean(), ""),  # all pairs of outputs
        swept(lambda o, y: -(-((o[:, :1] - y.float()) ** 2)).exp().mean(), ""),  # a kernel of all pairs
        (lambda o, y: 2 * (o[:, :1] - y.float()).abs().mean() - (o[:, :1] - o[:, 0]).abs().mean(), ""),  # of samples
        swept(lambda o, y: (torch.rand(32, 32) * (o[:, :1] - y.float()) ** 2).sum(), ""),  # optimal transport
        (lambda o, y: (torch.eye(32) * o[:, 0].exp()).sum(1).log().mean(), ""),  # a mask of pairs
        (lambda o, y: F.cross_entropy(o, y) - 0.5 * F.cross_entropy(o[:, :2], y % 2), ""),  # an adversary
        *((lambda o, y, one=one: F.cross_entropy(o, y) * one, "") for one in (torch.tensor(True), torch.tensor(2))),
    ],
)
def test_losses(loss_of: Loss, expected: str) -> None:
    said = all_faults(lambda: train(net(), loss_of, lr=0.5))
    assert said[0].startswith(expected) if expected else not said


@pytest.mark.parametrize("parametrization", [nn.Identity, swept(nn.Hardtanh)])
def test_a_last_layer_of_as_many_classes_as_the_batch_has_rows_is_no_batch(parametrization: type[nn.Module]) -> None:
    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 32, bias=False))
        nn.utils.parametrize.register_parametrization(model[2], "weight", parametrization())
        return train(model, lambda o, y: F.cross_entropy(o, y * 0))

    assert not any("two batches" in text for text in all_faults(program))


def cosines(classes: int, times: float) -> list[str]:
    """What is said of a last layer of cosines."""

    def program() -> nn.Module:
        centers = nn.Parameter(torch.randn(classes, 3))
        model = nn.Linear(6, 3)
        model.centers = centers

        def loss_of(o: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(
                times * F.linear(F.normalize(o), F.normalize(centers)), torch.randint(classes, (32,))
            )

        return train(model, loss_of)

    return all_faults(program)


def test_cosines_of_many_classes_need_a_scale() -> None:
    """No scores of cosines have a lower loss than 1 for the label, and -1 for all others."""
    scores = torch.full((1, 1000), -1.0, dtype=torch.float64)
    scores[0, 0] = 1
    least = F.cross_entropy(scores, torch.tensor([0])).item()
    expected = f"cross_entropy gets cosine similarities times 1, so that its loss can't fall below {least:.4g}"
    assert cosines(1000, 1.0)[0].startswith(expected)
    assert not cosines(1000, 16.0) and not cosines(100, 1.0)


@pytest.mark.sweep
def test_a_contrastive_loss_of_many_rows_may_have_no_temperature() -> None:
    def loss_of(o: Tensor, y: Tensor) -> Tensor:
        rows = o.repeat(32, 1)
        return F.cross_entropy(F.normalize(rows) @ F.normalize(rows + 0.1).T, torch.arange(1024))

    assert not all_faults(lambda: train(net(), loss_of))


def test_the_number_of_candidates_may_be_one_in_some_steps() -> None:
    def program() -> nn.Module:
        widths = cycle((3, 3, 1))
        return train(net(), lambda o, y: F.cross_entropy(o[:, : next(widths)], y * 0))

    assert not any("dimension of one number" in text for text in all_faults(program))


@pytest.mark.parametrize(("outputs", "are_candidates"), [(1, True), (4, False)])
def test_candidates_that_a_layer_scores_one_by_one_have_no_classes(outputs: int, are_candidates: bool) -> None:
    def program() -> nn.Module:
        return train(nn.Linear(6, outputs), lambda o, y: F.cross_entropy(o.view(-1, 4), y.new_zeros(8 * outputs)))

    *_, last = measured(observed(program)).lines[Learning.kind]
    assert isinstance(last, Learning) and last.classes == 0 and (last.one_label == 0) is are_candidates


@pytest.mark.parametrize(
    ("loss_of", "remedy"),
    [
        (
            lambda o, y: ((o[:, :1] - y.float()) ** 2).mean(),
            "look at the shapes and the sign of what the loss is given",
        ),
        (lambda o, y: -F.cross_entropy(o, y), "take the minus sign away"),
        (lambda o, y: F.cross_entropy(o.softmax(1), y), None),  # HK034
    ],
)
def test_what_is_wrong_with_a_loss_is_a_finding_as_well(loss_of: Loss, remedy: str | None) -> None:
    seen = measured(observed(lambda: train(net(), loss_of, lr=0.5)))
    found = [*MisusedLoss().judge(seen)]  # type: ignore[arg-type]
    assert [one.message for one in found] == [*faults(seen)][: len(found)]
    assert [one.remedy for one in found] == ([remedy] if remedy else [])


@pytest.mark.sweep
@pytest.mark.parametrize("frozen", [swept(True), False])
def test_an_attack_on_a_model_is_no_wrong_sign(frozen: bool) -> None:
    """One model is trained to make the loss of another as large as it can, which is frozen or trained in turns."""

    def program() -> nn.Module:
        victim, attack = net().requires_grad_(not frozen), nn.Linear(6, 6)
        optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (victim, attack)[frozen:]]
        for step in range(STEPS):
            x = torch.randn(32, 6)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = F.cross_entropy(victim(x + attack(x)), x[:, :3].argmax(1))
            attacks = frozen or step % 2
            (-loss if attacks else loss).backward()
            optimizers[-1 if attacks else 0].step()
        return nn.Sequential(victim, attack)

    assert not all_faults(program)


class Parts(nn.Module):
    """Two branches, whose outputs are treated by `way`."""

    def __init__(self, way: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.way = way
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.cat([self.a(x).tanh(), self.way(self.b, x).tanh()], 1))
        return scores


def without_gradients(part: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        y: Tensor = part(x)
    return y


def moved(part: nn.Module, x: Tensor) -> Tensor:
    """A part that the program itself moves, such as a moving average of another."""
    with torch.no_grad():
        for p in part.parameters():
            p.mul_(0.99)
    return without_gradients(part, x)


ALL, PART = (
    "no gradient reaches any of the 6 parameters of the optimizer",
    "no gradient reaches b (2 of the 6 parameters",
)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        swept(lambda part, x: part(x), ""),
        (lambda part, x: part(x).detach(), f"{PART} of the optimizer): the loss does not use what they return"),
        swept(
            lambda part, x: torch.tensor(part(x).tolist()),
            f"{PART} of the optimizer): the loss does not use what they return",
        ),
        swept(without_gradients, ""),  # perhaps on purpose
        swept(moved, ""),
    ],
)
def test_parts_without_gradients(way: Callable[[nn.Module, Tensor], Tensor], expected: str) -> None:
    said = all_faults(lambda: train(Parts(way), F.cross_entropy))
    assert said[0].startswith(expected) if expected else not said


def shown(classes: int, arrange: Loss, *size: int) -> list[str]:
    """The faults of a convolution's scores (4, classes, *size), which `arrange` gives to cross_entropy in rows."""

    def program() -> nn.Module:
        model = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1](2, classes, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for _ in range(4):
            x = torch.randn(4, 2, *size)
            optimizer.zero_grad()
            F.cross_entropy(rows := arrange(model(x), x), torch.arange(len(rows)) % classes).backward()
            optimizer.step()
        return model

    return all_faults(program)


@pytest.mark.parametrize(
    ("classes", "size", "arrange", "shapes"),
    [
        (5, (6, 6), lambda o, x: o.view(-1, 5), "4x5x6x6 viewed as 144x5"),
        swept(3, (6, 6), lambda o, x: o.flatten(2).reshape(-1, 3), "4x3x6x6 viewed as 144x3"),
        swept(5, (3, 3), lambda o, x: o.relu().reshape(-1, 5), "4x5x3x3 viewed as 36x5"),
        swept(3, (6, 6), lambda o, x: F.interpolate(o, scale_factor=2).view(-1, 3), "4x3x12x12 viewed as 576x3"),
        swept(3, (6, 6), lambda o, x: o.to(memory_format=torch.channels_last).reshape(-1, 3), "4x3x6x6 viewed as"),
        swept(4, (10,), lambda o, x: o.view(-1, 4), "4x4x10 viewed as 40x4"),
        swept(4, (3, 3, 3), lambda o, x: o.double().view(-1, 4), "4x4x3x3x3 viewed as 108x4"),
        (5, (6, 6), lambda o, x: o.permute(0, 2, 3, 1).reshape(-1, 5), ""),
        (6, (6, 6), lambda o, x: o.movedim(1, -1).reshape(-1, 6), ""),
        swept(4, (10,), lambda o, x: o.transpose(1, 2).reshape(-1, 4), ""),
        swept(4, (3, 3, 3), lambda o, x: o.permute(0, 2, 3, 4, 1).reshape(-1, 4), ""),
        swept(5, (6, 6), lambda o, x: o.transpose(0, 1).reshape(5, -1).T, ""),
        swept(9, (3, 3), lambda o, x: o.view(-1, 9), ""),  # heat maps
        swept(5, (1, 1), lambda o, x: o.view(-1, 5), ""),
        (3, (6,), lambda o, x: o.relu().view(-1, 3), ""),  # two choices for each position
    ],
)
def test_scores_that_are_viewed_without_a_permute(
    classes: int, size: tuple[int, ...], arrange: Loss, shapes: str
) -> None:
    said = shown(classes, arrange, *size)
    assert said[0].startswith(f"the scores of cross_entropy are {shapes}") if shapes else not said


@pytest.mark.parametrize(
    ("size", "arrange", "shapes"),
    [
        ((7,), lambda o: o.view(4, 5, 7), "4x7x5 viewed as 4x5x7"),
        swept((7,), lambda o: o.reshape(4, 5, -1), "4x7x5 viewed as 4x5x7"),
        swept((3, 6), lambda o: o.view(4, 5, 3, 6), "4x3x6x5 viewed as 4x5x3x6"),
        ((7,), lambda o: o.transpose(1, 2), ""),
        swept((7,), lambda o: o.permute(0, 2, 1).contiguous(), ""),
        swept((5,), lambda o: o.view(4, 5, 5), ""),  # nobody knows
        swept((7,), lambda o: o.flatten(1).view(4, 5, 7), "4x7x5 viewed as 4x5x7"),
    ],
)
def test_scores_of_sequences_that_are_viewed_with_the_classes_first(
    size: tuple[int, ...], arrange: Callable[[Tensor], Tensor], shapes: str
) -> None:
    def program() -> nn.Module:
        model = nn.Linear(2, 5)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for _ in range(4):
            optimizer.zero_grad()
            scores = arrange(model(torch.randn(4, *size, 2)))
            F.cross_entropy(scores, torch.randint(5, (4, *scores.shape[2:]))).backward()
            optimizer.step()
        return model

    said = all_faults(program)
    wanted = f"the scores of cross_entropy are {shapes}: permute the classes to dimension 1 instead"
    assert said == ([wanted] if shapes else [])


def test_heads_that_return_the_classes_of_all_places_are_right() -> None:
    def program() -> nn.Module:
        model = nn.Linear(2, 35)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(4, 2)).view(4, 5, 7), torch.randint(5, (4, 7))).backward()
            optimizer.step()
        return model

    assert not all_faults(program)


@pytest.mark.parametrize(
    ("scores", "labels", "crossed"),
    [
        (lambda o: o.reshape(-1, 4), lambda y: y.reshape(-1), True),
        swept(lambda o: o.double().flatten(0, 1), lambda y: y.view(-1), True),
        swept(lambda o: o.permute(1, 0, 2).reshape(-1, 4), lambda y: y.t().contiguous().view(-1), True),  # labels first
        (lambda o: o.flatten(0, 1), lambda y: y.repeat(3, 1)[3:6].flatten(), True),  # rows of a table
        (lambda o: o.permute(1, 0, 2).reshape(-1, 4), lambda y: y.reshape(-1), False),
        swept(lambda o: o.transpose(0, 1).reshape(-1, 4), lambda y: y.repeat(3, 1)[3:6].flatten(), False),
        (lambda o: o.view(-1, 4), lambda y: y.t().reshape(-1), False),  # the copy is time-major
        swept(lambda o: o.view(-1, 4), lambda y: y.t().contiguous().view(-1), False),
        swept(lambda o: o[:3].reshape(-1, 4), lambda y: y[:, :3].t().contiguous().view(-1), False),  # as many of both
        swept(lambda o: o[:3].reshape(-1, 4), lambda y: y[:, :3].contiguous().view(-1), False),  # which may be either
        swept(lambda o: o.view(-1, 4), lambda y: y.flatten().clone(), False),  # nobody knows
        swept(lambda o: o.permute(1, 2, 0), lambda y: y, False),
        swept(lambda o: o[0], lambda y: y[:, 0], False),
    ],
)
def test_scores_and_labels_of_which_one_has_time_first(scores: Any, labels: Any, crossed: bool) -> None:
    def program() -> nn.Module:
        model = nn.Linear(2, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(scores(model(torch.randn(5, 3, 2))), labels(torch.randint(4, (3, 5)))).backward()
            optimizer.step()
        return model

    said = all_faults(program)
    assert bool(said) is crossed
    assert not crossed or re.match(r"the scores of cross_entropy are (\d)x(\d)x4, and its labels \2x\1, b", said[0])


B, T, D = 16, 5, 4
Reads = Callable[[nn.Module, Tensor], Tensor]


class Sequences(nn.Module):
    """Reads sequences with `body`, and returns a score for each of 3 classes."""

    def __init__(self, body: nn.Module, reads: Reads) -> None:
        super().__init__()
        self.body, self.head, self.reads = body, nn.Linear(D, 3), reads

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.reads(self.body, x))
        return scores


def sequences(body: Callable[[], nn.Module], reads: Reads, size: tuple[int, ...]) -> nn.Module:
    model = Sequences(body(), reads)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(3):
        optimizer.zero_grad()
        scores = model(torch.randn(size))
        F.cross_entropy(scores, torch.randint(3, scores.shape[:1])).backward()
        optimizer.step()
    return model


def encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(D, 2, 8, **options), 1, enable_nested_tensor=False)


def packed(body: nn.Module, x: Tensor) -> Tensor:
    hidden: Tensor = body(nn.utils.rnn.pack_padded_sequence(x, torch.full((B,), T)))[1][0]
    return hidden


@pytest.mark.parametrize(
    ("body", "reads", "size", "over_batch"),
    [
        (lambda: nn.LSTM(D, D), lambda body, x: body(x)[0][:, -1], (B, T, D), True),
        (encoder, lambda body, x: body(x).mean(1), (B, T, D), True),
        swept(lambda: nn.MultiheadAttention(D, 2), lambda body, x: body(x, key=x, value=x)[0].mean(1), (B, T, D), True),
        (lambda: nn.LSTM(D, D, batch_first=True), lambda body, x: body(x)[0][:, -1], (B, T, D), False),
        swept(lambda: encoder(batch_first=True), lambda body, x: body(x).mean(1), (B, T, D), False),
        (lambda: nn.GRU(D, D), lambda body, x: body(x)[0][-1], (T, B, D), False),
        swept(encoder, lambda body, x: body(x).mean(0), (T, B, D), False),
        swept(lambda: nn.GRU(D, D), lambda body, x: body(x.transpose(0, 1))[0][-1], (B, T, D), False),
        swept(lambda: nn.GRU(D, D), lambda body, x: body(x.transpose(0, 1))[0][-1], (B, B, D), False),
        swept(lambda: nn.RNN(D, D), lambda body, x: body(x[:, None])[0][:, 0], (T, D), False),  # one sentence
        swept(lambda: nn.RNN(D, D), lambda body, x: body(x)[0].flatten(0, 1), (T, B, D), False),  # all its tags
        swept(lambda: nn.GRU(D, D), packed, (T, B, D), False),
    ],
)
def test_modules_that_take_the_batch_for_the_sequence(
    body: Callable[[], nn.Module], reads: Reads, size: tuple[int, ...], over_batch: bool
) -> None:
    seen = observed(lambda: sequences(body, reads, size))
    words = {line.over_batch for line in seen.of_parts if isinstance(line, Learning)}
    assert words == {f"body takes dimension 0 of its input ({B}, the batch) for the sequence" if over_batch else ""}


@pytest.mark.parametrize("body", [lambda: nn.LSTM(D, D), encoder])
def test_a_layer_that_takes_the_batch_for_the_sequence_is_named_whatever_the_level_is(
    body: Callable[[], nn.Module],
) -> None:
    def reads(body: nn.Module, x: Tensor) -> Tensor:
        outputs = body(x)
        last: Tensor = (outputs[0] if isinstance(outputs, tuple) else outputs)[:, -1]
        return last

    said = all_faults(lambda: sequences(body, reads, (B, T, D)))
    words = f"body takes dimension 0 of its input ({B}, the batch) for the sequence: give batch_first=True"
    assert said == [words]


@pytest.mark.parametrize(
    ("reads", "named"),
    [
        (lambda out: out[:, -1], True),
        (lambda out: out.mean(dim=1), True),
        (lambda out: out.flatten(1), False),  # a layer over the rows of the batch may be meant
    ],
)
def test_a_layer_that_reads_one_place_of_all_rows_has_batches_though_the_loss_falls(
    reads: Callable[[Tensor], Tensor], named: bool
) -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.LSTM(D, D)
            self.head = nn.LazyLinear(3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(reads(self.body(x)[0]))
            return scores

    def program() -> nn.Module:
        torch.manual_seed(0)
        model = Reader()
        model(torch.zeros(B, T, D))
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        for step in range(60):
            rows = T if step % 9 == 8 else B  # the last batch of an epoch is smaller
            x = torch.randn(rows, 1, D) + 0.1 * torch.randn(rows, T, D)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), x[:, -1, :3].argmax(1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model

    losses: list[float] = []
    said = [line for line in all_faults(program, every=1) if "for the sequence" in line]
    assert fmean(losses[-15:]) < 0.65 * fmean(losses[:5])
    words = f"body takes dimension 0 of its input ({B}, the batch) for the sequence: give batch_first=True"
    assert said == [words] * named


def squares(outputs: Tensor) -> Tensor:
    return F.mse_loss(outputs, torch.randn(outputs.shape))


@pytest.mark.parametrize(("index", "over_batch"), [((slice(None), -1), True), ((...,), False)])
def test_a_loss_of_all_steps_does_not_tell_the_batch_from_time(index: Any, over_batch: bool) -> None:
    def program() -> nn.Module:
        model = nn.LSTM(D, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for _ in range(3):
            optimizer.zero_grad()
            squares(model(torch.randn(B, T, D))[0][index]).backward()
            optimizer.step()
        return model

    words = {line.over_batch for line in observed(program).of_parts if isinstance(line, Learning)}
    assert words == {f"the model takes dimension 0 of its input ({B}, the batch) for the sequence" * over_batch}


class Codes(nn.Module):
    """Returns a reconstruction of the input, and the codes that it was made from."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 2), nn.Linear(2, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.encoder(x.flatten(1))
        return self.decoder(codes), codes


def supervised(o: Tensor, z: Tensor, x: Tensor) -> Tensor:
    """A summed cross-entropy that a reconstruction regularizes (Le et al. 2018)."""
    labels = x.flatten(1)[:, :2].argmax(1, keepdim=True)
    return F.mse_loss(o, x.view_as(o)) - z.log_softmax(1).gather(1, labels).sum()


@pytest.mark.parametrize(
    ("loss_of", "outweighed"),
    [
        (lambda o, z, x: F.mse_loss(o, x.flatten(1)) - 0.5 * (1 - z**2).sum(), True),
        (lambda o, z, x: F.mse_loss(o, x.flatten(1)) + 0.05 * (z**2).sum(), True),
        (lambda o, z, x: F.mse_loss(o, x.view_as(o), reduction="sum") + (z**2).sum(), False),
        (lambda o, z, x: F.mse_loss(o, x.view_as(o)) + 1e-3 * (z**2).sum(), False),
        (supervised, False),
        swept(lambda o, z, x: 6 * 32 * F.mse_loss(o, x.view_as(o)) + (z**2).sum(), False),
        swept(lambda o, z, x: F.mse_loss(o, x.view_as(o)) + (z**2).sum() / 32, False),
        swept(lambda o, z, x: F.mse_loss(o, x.view_as(o)) + (z**2).mean(), False),
        swept(lambda o, z, x: F.mse_loss(o, x.view_as(o).cos()) + (z**2).sum(), False),  # another target
        swept(lambda o, z, x: F.mse_loss(o, x.view_as(o)) + z.abs().sum(1).mean(), False),
    ],
)
def test_reconstructions_that_another_term_outweighs(
    loss_of: Callable[[Tensor, Tensor, Tensor], Tensor], outweighed: bool
) -> None:
    errors = []

    def program() -> nn.Module:
        model = Codes()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(3):
            x = torch.rand(32, 2, 3)
            optimizer.zero_grad()
            outputs, codes = model(x)
            loss_of(outputs, codes, x).backward()
            optimizer.step()
            rows = x.flatten(1)
            errors.append(((outputs - rows) ** 2).mean().item() / ((rows - rows.mean(0)) ** 2).mean().item())
        return model

    lines = [line for line in observed(program).of_parts if isinstance(line, Learning)]
    said = "the loss averages its error over 192 values, and sums another term over 64"
    assert {line.outweighed for line in lines} == {said if outweighed else ""}
    shares = [line.unexplained for line in lines]
    assert shares == (pytest.approx(errors[-3:], rel=1e-4) if outweighed else [None] * 3)


@pytest.mark.parametrize(
    ("share", "number", "recorded", "every", "words"),
    [
        (1.01, 120, 12, 6, "outweighed"),
        (0.9, 120, 12, 6, ""),
        (1.4, 120, 12, 6, ""),
        (1.01, 90, 12, 6, ""),
        (1.01, 120, 11, 6, ""),
        (1.01, 120, 12, 3, ""),
    ],
)
def test_a_reconstruction_no_better_than_the_mean_is_said(
    share: float, number: int, recorded: int, every: int, words: str
) -> None:
    """Twelve recorded steps or more, the last one after a third of the run."""
    steps = range(0, recorded * every, every)
    lines = [Learning("Net", step, outweighed="outweighed", unexplained=share) for step in steps]
    assert collapsed(number, lines).rpartition(": ")[2] == words
    assert not collapsed(number, [*lines[1:], Learning("Net", recorded)])


class Listed(nn.Module):
    """Has a layer in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layers = nn.Linear(6, 3), [nn.Linear(3, 3)]

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers[0](self.first(x))
        return scores


@pytest.mark.parametrize("held", [False, True])
def test_layers_in_a_plain_list_that_no_optimizer_has(held: bool) -> None:
    def program() -> nn.Module:
        model = Listed()
        hidden = model.layers[0].parameters() if held else []
        return train(model, F.cross_entropy, torch.optim.SGD([*model.parameters(), *hidden], 0.05))

    said = all_faults(program)
    expected = "layers is a plain list of 1 module, which PyTorch doesn't register, and no optimizer gets"
    assert not said if held else said[0].startswith(expected)


def test_parts_that_no_optimizer_has_may_run_without_gradients() -> None:
    def program() -> nn.Module:
        model = Parts(without_gradients)
        return train(model, F.cross_entropy, torch.optim.SGD([*model.a.parameters(), *model.head.parameters()], 0.05))

    assert not all_faults(program)


@pytest.mark.sweep
def test_an_output_that_the_loss_does_not_use_is_not_said() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.pool = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            x = self.body(x).tanh()
            return {"scores": self.head(x), "pooled": self.pool(x)}

    assert not all_faults(lambda: train(Two(), lambda o, y: F.cross_entropy(o["scores"], y)))  # type: ignore[call-overload]


def test_heads_that_are_trained_in_turns_get_gradients_at_times() -> None:
    """Only steps of one head are recorded."""

    def program() -> nn.Module:
        step = iter(range(STEPS))
        return train(net(), lambda o, y: o[:, : 1 + next(step) % 2].square().mean())

    assert not all_faults(program, every=2)


@pytest.mark.parametrize("value", [swept(lambda o: o.detach().mean()), lambda o: o.argmax(1).float().mean()])
def test_a_loss_of_values_alone(value: Callable[[Tensor], Tensor]) -> None:
    said = all_faults(lambda: train(Parts(lambda part, x: part(x)), lambda o, y: value(o).requires_grad_()))
    assert said[0].startswith(ALL) and not any("rounded" in one for one in said)


@pytest.mark.sweep
def test_a_generator_whose_output_is_detached_before_the_other_model() -> None:
    """The loss has a graph, of the other model."""

    def program() -> nn.Module:
        generator, judge = net(), net()
        optimizers = (torch.optim.SGD(model.parameters(), 0.05) for model in (generator, judge))
        return train(generator, lambda o, y: F.cross_entropy(judge(torch.cat([o, o], 1).detach()), y), *optimizers)

    assert all_faults(program)[0] == (
        "no gradient reaches 0, 2 (4 of the 4 parameters of the optimizer): "
        "the loss does not use what they return, or something detaches it"
    )


def test_an_optimizer_that_makes_no_step_while_another_does() -> None:
    def program(begins: int) -> nn.Module:
        model = net()
        body, head = (torch.optim.SGD(model[part].parameters(), 0.05) for part in (0, 2))
        for step in range(STEPS):
            x = torch.randn(32, 6)
            model.zero_grad()
            F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
            body.step()
            if step >= begins:
                head.step()
        return model

    expected = "SGD, which has 2.weight, 2.bias, makes no step while another optimizer does, though gradients arrive"
    assert all_faults(lambda: program(STEPS)) == [expected]
    assert not all_faults(lambda: program(STEPS // 2))


@pytest.mark.parametrize(("size", "lr", "said"), [(1e4, 0.1, True), (1e4, 1e-9, False), (1.0, 0.1, False)])
def test_large_inputs_that_let_the_loss_run_away(size: float, lr: float, said: bool) -> None:
    def program() -> nn.Module:
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr)
        for _ in range(12):
            x = torch.randn(64, 6)
            optimizer.zero_grad()
            F.mse_loss(model(size * x)[:, 0], size * x[:, 0]).backward()
            optimizer.step()
        return model

    assert any(one.startswith("the inputs are large (root mean square") for one in all_faults(program)) is said


@pytest.mark.parametrize(("rows_shuffled", "batches_shuffled"), [(True, False), (False, True), (False, False)])
def test_labels_that_are_sorted(rows_shuffled: bool, batches_shuffled: bool) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        x = torch.randn(8 * STEPS, 6)
        y = x[:, :3].argmax(1)
        if not rows_shuffled:
            x, y = x[y.argsort()], y.sort().values
        batches = torch.arange(8 * STEPS).split(8)
        for rows in (batches[::3] + batches[1::3] + batches[2::3]) if batches_shuffled else batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        return model

    said = all_faults(program)
    assert any(one.startswith("all labels of a batch are one class, in 1") for one in said) is not (
        rows_shuffled or batches_shuffled
    )


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([0] * 9 + [1] * 9, True),  # 2 of 48,620 orders
        ([0] * 8 + [1] * 8, False),  # 2 of 12,870
        ([2] * 4 + [0] * 4 + [7] * 4, False),  # 6 of 34,650
        ([2] * 5 + [0] * 5 + [7] * 5, True),  # 6 of 756,756
        ([0] * 9 + [1] * 9 + [0], False),
        ([3] * 40, False),
    ],
)
def test_classes_that_follow_each_other_are_in_blocks(classes: list[int], expected: bool) -> None:
    assert are_blocks(classes) is expected


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        ([*range(6)] * 6, True),  # 30 of 35 come after a lower one
        ([*range(5, -1, -1)] * 6, True),
        ([0, 1] * 20, False),
        ([0, 2, 1] * 12, False),
        ([*range(6)], False),
        ([3] * 40, False),
        ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4], False),
    ],
)
def test_classes_that_come_in_turn(classes: list[int], expected: bool) -> None:
    assert are_in_turn(classes) is expected


def test_a_rare_class_is_missing_in_most_batches() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), (torch.rand(8) < 0.02).long()).backward()
            optimizer.step()
        return model

    assert not all_faults(program)


def binary_loss(mean: float, steps: int = 120, **of_line: Any) -> str:
    """The message on a binary cross-entropy that stays at this mean."""
    losses = {step: mean + 0.02 * (step % 4 - 1.5) for step in range(steps)}
    fields = {"ones": 0.5, "targets": 32, "alone": True} | of_line
    lines = {Learning.kind: [Learning("Net", step, **fields) for step in range(steps)], "untrained": ()}
    measured = Measurements(losses=LossCourse.of(losses), every_loss=losses, lines=lines)
    return "".join(one.message for one in NoBetterThanGuessing().judge(measured))


def entropy(share: float) -> float:
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_a_binary_cross_entropy_is_compared_with_the_share_of_ones(share: float) -> None:
    guessed = f"guessing ({entropy(share):.4f}, as {share:.0%} of the targets are 1)"
    assert binary_loss(1.01 * entropy(share), ones=share).endswith(f"no better than {guessed}")
    assert binary_loss(0.995 * entropy(share), ones=share).endswith(f"hardly better than {guessed}")
    assert not binary_loss(0.985 * entropy(share), ones=share)  # a weak signal, which it has learned
    assert "lstm" in binary_loss(0.985 * entropy(share), ones=share, over_batch="lstm takes ...")  # a cause
    assert not binary_loss(0.97 * entropy(share), ones=share)


@pytest.mark.parametrize("steps", [2, 1])
def test_a_missing_batch_first_is_a_cause_in_all_recorded_steps_alone(steps: int) -> None:
    words = ["lstm takes ..." * (step < steps) for step in (0, 1)]
    lines = [Learning("Net", step, ones=0.5, targets=32, over_batch=one) for step, one in enumerate(words)]
    every = dict.fromkeys(range(120), 0.7)
    of_model = {Learning.kind: lines, "untrained": ()}
    measured = Measurements(losses=LossCourse.of(every), every_loss=every, lines=of_model)
    (finding,) = NoBetterThanGuessing().judge(measured)
    assert finding.message.startswith("lstm takes ...: give batch_first=True; ") is (steps == 2)


@pytest.mark.parametrize("more", [{"alone": False}, {"steps": 90}, {"targets": 8}, {"ones": None}, {"ones": 0.0}])
def test_other_binary_losses_are_not_judged(more: dict[str, Any]) -> None:
    assert not binary_loss(1.01 * entropy(0.5), **more)


@pytest.mark.sweep
@pytest.mark.parametrize(("alone", "targets"), [(True, "hard"), (False, "hard"), (True, "soft"), (True, "weighted")])
def test_the_share_of_ones_is_read_where_it_tells(alone: bool, targets: str) -> None:
    def loss_of(outputs: Tensor, y: Tensor) -> Tensor:
        ones = (y == 0).float() * (0.9 if targets == "soft" else 1)
        weight = torch.tensor(2.0) if targets == "weighted" else None
        return F.binary_cross_entropy_with_logits(outputs[:, 0], ones, pos_weight=weight)

    def program() -> nn.Module:
        model = net()
        parts = [model] if alone else [model[0], model[2]]
        return train(model, loss_of, *(torch.optim.SGD(part.parameters(), 0.05) for part in parts))

    lines = [line for line in observed(program).of_parts if isinstance(line, Learning)]
    known = [line.ones is not None for line in lines]
    assert known == [alone and targets == "hard"] * STEPS
    if all(known):
        assert all(0 < (line.ones or 0) < 1 and line.ones == round((line.ones or 0) * 32) / 32 for line in lines)


def guess_with(optimizer: Callable[[nn.Module], torch.optim.Optimizer]) -> list[str]:
    """The text on a loss that stays at the level of guessing, with labels drawn at random over many steps."""

    def program() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        steps = optimizer(model)
        for _ in range(60):
            steps.zero_grad()
            F.cross_entropy(model(torch.randn(32, 6)), torch.randint(3, (32,))).backward()
            steps.step()
        return model

    return all_faults(program, every=4)


def centered(y: Tensor) -> Tensor:
    return y.float() - 1


NEVER = "of the targets are numbers that the model can't return: it ends with"


@pytest.mark.parametrize(
    ("loss_of", "ends_with"),
    [
        swept(lambda o, y: F.mse_loss(o[:, 0].relu(), centered(y)), "ReLU (0 or more)"),
        (lambda o, y: F.mse_loss(o.sigmoid()[:, 0], 60.0 + y), "Sigmoid (0 to 1)"),
        swept(lambda o, y: F.smooth_l1_loss(o[:, :1].tanh().squeeze(1), 5 * centered(y)) + 1, "Tanh (-1 to 1)"),
        swept(lambda o, y: F.huber_loss(o.softmax(1), values(y).expand(-1, 3)) / 2, "Softmax (0 to 1)"),
        (lambda o, y: binary(o.relu(), y), "a ReLU before the sigmoid (0.5 to 1)"),
        swept(
            lambda o, y: F.binary_cross_entropy(F.softplus(o[:, 0]).sigmoid(), (y == 0).float()),
            "a Softplus before the sigmoid (0.5 to 1)",
        ),
        swept(lambda o, y: binary(o, y), ""),
        swept(lambda o, y: binary(o.relu() - 1, y), ""),
        swept(lambda o, y: F.mse_loss(o[:, 0].relu(), y.float()), ""),
        swept(lambda o, y: F.mse_loss(o.sigmoid(), F.one_hot(y, 3).float()), ""),
        swept(lambda o, y: F.mse_loss(o.tanh()[:, 0], centered(y)), ""),
        swept(lambda o, y: F.mse_loss(torch.cat([o[:, 0].relu(), o[:, 1]]), centered(y).repeat(2)), ""),
        swept(lambda o, y: F.mse_loss(o[:, 0].relu() - 1, centered(y)), ""),
    ],
)
def test_targets_that_the_last_activation_can_not_reach_are_said(loss_of: Loss, ends_with: str) -> None:
    said = [text for text in all_faults(lambda: train(net(), loss_of)) if NEVER in text]
    assert [text.rpartition(NEVER)[2].strip() for text in said[:1]] == ([ends_with] if ends_with else [])


@pytest.mark.parametrize("scale", [swept(1.0), 1000.0])
def test_targets_far_from_what_a_model_returns_are_a_cause(scale: float) -> None:
    """The targets have a mean of 4 times the `scale`, which is their standard deviation."""

    def program() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.05 / scale)
        for _ in range(120):
            x = torch.randn(32, 6)
            optimizer.zero_grad()
            F.mse_loss(model(x), scale * (x[:, :1] + 4)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return model

    causes = [text.partition("; ")[0] for text in all_faults(program, every=10)]
    said = [cause.removeprefix("the outputs are ") for cause in causes if cause.startswith("the outputs are ")]
    said = [cause.removesuffix(": standardize the targets to mean 0 and standard deviation 1") for cause in said]
    means = [float(x) for text in filter(None, said) for x in text.split(" on average, and the targets ")]
    assert (abs(means[0]) < 500 and abs(means[1] - 4000) < 500) if scale > 1 else not means


CHANNELS = torch.tensor([-2.1, -2.0, -1.9]).repeat(2)


@pytest.mark.parametrize(("offset", "said"), [(torch.tensor(-2.0), True), (CHANNELS, True), (torch.zeros(6), False)])
def test_inputs_that_hardly_vary_are_a_cause(offset: Tensor, said: bool) -> None:
    """Normalized twice, images are some -2 ± 0.003, or so in each channel; around 0 they vary by their size."""

    def program() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(60):
            x = torch.randn(32, 6)
            optimizer.zero_grad()
            F.cross_entropy(model(0.003 * x + offset), x[:, :3].argmax(1)).backward()
            optimizer.step()
        return model

    words = "the inputs hardly differ from row to row: their standard deviation is "
    causes = [text.partition("; ")[0] for text in all_faults(program, every=5) if text.startswith(words)]
    after = " of their size: scale the inputs to mean 0 and standard deviation 1"
    ends = [cause.removeprefix(words).removesuffix(after) for cause in causes]
    assert [*map(float, filter(None, ends))] == [pytest.approx(0.0015, rel=0.2)] * said


@pytest.mark.parametrize("learns", [True, False])
def test_a_trunk_without_gradients_is_a_cause_of_a_loss_that_stays(learns: bool) -> None:
    """The trunk below a linear probe runs without gradients on purpose."""

    def program() -> nn.Module:
        model = Parts(without_gradients)
        optimizer = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(60):
            x = torch.randn(32, 6)
            optimizer.zero_grad()
            F.cross_entropy(model(x), x[:, :3].argmax(1) if learns else torch.randint(3, (32,))).backward()
            optimizer.step()
        return model

    said = all_faults(program, every=4)
    cause = (
        "no gradient reaches b (2 of the 6 parameters of the optimizer): they run without gradients (torch.no_grad): "
        "run them with gradients, or freeze them"
    )
    assert [one.partition("; ")[0] for one in said] == ([] if learns else [cause])


def test_causes_of_a_loss_that_is_no_better_than_guessing() -> None:
    def biases(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in model.parameters() if p.dim() < 2], 0.1)

    def decays(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.1, weight_decay=2)

    def plain(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.1, weight_decay=1e-3)

    causes = [guess_with(one)[-1].rpartition("; ")[0] for one in (biases, decays, plain)]
    held = "no optimizer has 0.weight, 2.weight (2 of the 4 parameters that get a gradient)"
    decay = "weight decay takes 20% of the weights in each step: lower weight_decay"
    assert causes == [f"{held}: give these parameters to the optimizer, or freeze them", decay, ""]


@pytest.mark.parametrize("normalize", [F.log_softmax, F.softmax])
def test_ctc_loss_of_what_is_no_log_softmax(normalize: Callable[..., Tensor]) -> None:
    def program() -> nn.Module:
        model = nn.Linear(6, 5)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            scores, lengths = normalize(model(torch.randn(12, 4, 6)), -1), torch.full((4,), 12)
            optimizer.zero_grad()
            F.ctc_loss(scores, torch.randint(1, 5, (4, 3)), lengths, lengths // 4).backward()
            optimizer.step()
        return model

    said = [text for text in all_faults(program) if "ctc_loss" in text]
    assert bool(said) is (normalize is F.softmax)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (1, 1)])
def test_embeddings_that_get_one_index_alone(first: int, second: int) -> None:
    """`first`, `second`: how much the indices of two embeddings vary, those of token types not at all."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds, self.places, self.head = nn.Embedding(3, 4), nn.Embedding(3, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.kinds(x * first) + self.places(x * second))
            return scores

    def program() -> nn.Module:
        model = Table()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(60):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randint(3, (32,))), torch.randint(3, (32,))).backward()
            optimizer.step()
        return model

    said = [text for text in all_faults(program) if "gets one and the same index" in text]
    assert bool(said) is not (first or second)
    assert all(text.startswith("kinds, like every embedding,") for text in said)
