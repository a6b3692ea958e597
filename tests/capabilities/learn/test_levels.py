"""The level of guessing where a loss is scaled, summed over passes, or counts some labels; and warm-ups that hang."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from capabilities.learn.test_misused import all_faults, net
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.guessing import Compared, tells_little
from hookcli.capabilities.learn.lines import Learning
from hookcli.hooks.torch_private.losses import choices_of, ignored_label

STEPS, EVERY = 60, 6  # of which every sixth is recorded
SCORES, LABELS = torch.zeros(8, 5, requires_grad=True), torch.arange(8) % 5
"""Of scores that are all zero the mean cross-entropy is ln 5."""


def entropy() -> Tensor:
    return F.cross_entropy(SCORES, LABELS)


@pytest.mark.parametrize(
    "make",
    [
        entropy,
        lambda: entropy() / 4,
        lambda: 0.25 * entropy() * 2,
        lambda: entropy() / torch.tensor(8),
        lambda: entropy().double() / 2,
        lambda: entropy() + 0.5 * entropy(),
        lambda: torch.add(entropy(), entropy(), alpha=3),
        lambda: 2 * entropy() - 0.5 * -(-entropy() / -1),
        lambda: torch.stack([entropy(), entropy() / 2]).mean(),
        lambda: torch.stack([entropy(), entropy()]).sum(),
        lambda: F.cross_entropy(SCORES, LABELS, label_smoothing=0.1),
        lambda: 0.5 * F.cross_entropy(SCORES, LABELS, label_smoothing=1.0),
        lambda: F.cross_entropy(SCORES.view(2, 4, 5).mT, LABELS.view(2, 4), label_smoothing=0.3) + entropy(),
        lambda: F.cross_entropy(SCORES, LABELS, torch.ones(5), label_smoothing=0.3),
        lambda: F.nll_loss(F.log_softmax(torch.cat([SCORES, SCORES]), 1)[8:], LABELS),
        lambda: F.nll_loss(F.log_softmax(torch.cat([SCORES, SCORES]), 1)[torch.arange(16) % 2 == 0], LABELS),
        lambda: F.nll_loss(F.log_softmax(torch.cat([SCORES, SCORES]), 1).index_select(0, torch.arange(8)), LABELS),
    ],
)
def test_the_factors_of_a_loss_add_up_to_its_value(make: Callable[[], Tensor]) -> None:
    loss = make()
    known = choices_of(loss)
    assert all((one.items, one.classes) == (8, 5) for one in known)
    if known:  # a sign that is turned twice may be left unknown
        assert sum(one.factor for one in known) * math.log(5) == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        lambda: -entropy(),
        lambda: entropy() - 2 * entropy(),
        lambda: entropy() + 1.0,
        lambda: 3 - entropy(),
        lambda: entropy() + SCORES.square().mean(),
        lambda: entropy() * entropy(),
        lambda: entropy().square(),
        lambda: F.cross_entropy(SCORES, LABELS, reduction="sum") + 1.0,
        lambda: F.cross_entropy(SCORES, LABELS, reduction="none")[:4].mean(),
        lambda: F.nll_loss(F.log_softmax(SCORES, 1)[:, :4], LABELS % 4),  # some of the classes
    ],
)
def test_other_losses_have_no_known_level(loss: Callable[[], Tensor]) -> None:
    assert not choices_of(loss())


@pytest.mark.parametrize("index", [-100, -1, 2, 255])
def test_the_label_that_does_not_count(index: int) -> None:
    (one,) = choices_of(F.cross_entropy(SCORES, LABELS, ignore_index=index))
    assert ignored_label(one.node) == index


def batches(number: int = STEPS, *, random: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(number):
        x = torch.randn(32, 6)
        yield x, torch.randint(3, (32,)) if random else x[:, :3].argmax(1)


def accumulated(scale: float, *, lr: float = 0.5, passes: int = 4, **how: Any) -> nn.Module:
    """Several passes a step, each with a part of the batch."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for x, y in batches(**how):
        optimizer.zero_grad()
        for of_x, of_y in zip(x.chunk(passes), y.chunk(passes), strict=True):
            (scale * F.cross_entropy(model(of_x), of_y)).backward()
        optimizer.step()
    return model


TWICE = "the steps are too small (each of 4 backward passes divides its loss by 16: twice by their number)"


@pytest.mark.parametrize(
    ("scale", "how", "level"),
    [
        (1 / 4, {"random": True, "lr": 1e-3}, "(ln 3 = 1.099)"),
        swept(1.0, {"random": True, "lr": 1e-3}, "(4 ln 3 = 4.394)"),
        (1 / 16, {"lr": 1e-3}, "(0.25 ln 3 = 0.2747)"),
        swept(1 / 16, {"random": True, "lr": 1e-3, "passes": 16}, "(ln 3 = 1.099)"),  # fewer rows than classes
        swept(1 / 4, {}, ""),
        swept(1.0, {"lr": 0.1}, ""),
        swept(1 / 16, {"lr": 2.0}, ""),
    ],
)
def test_the_level_of_passes_that_are_summed(scale: float, how: dict[str, Any], level: str) -> None:
    text = "".join(all_faults(lambda: accumulated(scale, **how), every=EVERY))
    assert level in text if level else not text
    assert text.startswith(TWICE) is (level == "(0.25 ln 3 = 0.2747)")


def test_passes_of_contrastive_losses_have_no_level() -> None:
    def program() -> nn.Module:
        model = nn.Linear(6, 6)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        for x, _ in batches():
            optimizer.zero_grad()
            scores = model(x) @ x.T
            rows = torch.arange(len(x))
            ((F.cross_entropy(scores, rows) + F.cross_entropy(scores.T, rows)) / 2).backward()
            optimizer.step()
        return model

    assert not all_faults(program, every=EVERY)


def ignoring(ignored: Callable[[Tensor], Tensor], lr: float) -> list[str]:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.5)
        for x, y in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y.masked_fill(ignored(y), -100)).backward()
            optimizer.step()
        return model

    return all_faults(program, every=EVERY)


@pytest.mark.parametrize(
    "ignored", [swept(lambda y: y == 1), lambda y: torch.rand(len(y)) < 0.8, swept(lambda y: y > 5)]
)
def test_labels_that_are_left_out_on_purpose(ignored: Callable[[Tensor], Tensor]) -> None:
    assert not ignoring(ignored, 0.1)


def test_an_inverted_mask_leaves_one_class() -> None:
    (text,) = ignoring(lambda y: y != 1, 2.0)
    assert text.startswith("all labels that count are one of the 3 classes in each of 10 recorded steps (")
    assert " of 32 count, and cross_entropy ignores the others): the loss fell from " in text


def test_classes_of_weight_0_do_not_count() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        labels, weights = torch.tensor([0, 1, 2, 1, 1, 2, 2, 1, 1, 0]), torch.tensor([0.0, 2.0, 0.0])
        F.cross_entropy(model(torch.randn(10, 6)), labels, weights).backward()
        optimizer.step()
        return model

    (line,) = [one for one in observed(program).of_parts if isinstance(one, Learning)]
    assert (line.counted, line.number, line.one_label) == (5, 10, 1)


@pytest.mark.parametrize("share", [0.1, 0.7, 0.9, 1.0])
def test_labels_that_are_smoothed_away(share: float) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, label_smoothing=share).backward()
            optimizer.step()
        return model

    said = [text for text in all_faults(program, every=EVERY) if "label_smoothing" in text]
    assert bool(said) is (share >= 0.8)
    assert all(
        f"a label_smoothing of {share:g}, which leaves the labels {1 - share:.0%} of the weight" in text
        for text in said
    )


NO_LABEL = ": the mean over no label is NaN"


@pytest.mark.parametrize(
    ("first", "reduction", "index", "expected"),
    [
        (0, "mean", -100, f"all 32 labels are -100, which cross_entropy ignores (ignore_index){NO_LABEL}"),
        (
            24,
            "mean",
            255,
            f"all 32 labels are 255, which cross_entropy ignores (ignore_index){NO_LABEL}",
        ),
        (24, "sum", -100, ""),  # the loss is 0
        (STEPS, "mean", -100, ""),
    ],
)
def test_labels_that_are_all_ignored(first: int, reduction: str, index: int, expected: str) -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for step, (x, y) in enumerate(batches()):
            optimizer.zero_grad()
            labels = y.fill_(index) if step >= first else y
            (F.cross_entropy(model(x), labels, reduction=reduction, ignore_index=index) + 0.1).backward()
            optimizer.step()
        return model

    said = all_faults(program, every=EVERY)
    assert said[0].startswith(expected) if expected else not any("ignores" in text for text in said)


def test_the_labels_that_count_are_counted() -> None:
    def program() -> nn.Module:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        F.cross_entropy(
            model(torch.randn(10, 6)), torch.tensor([0, 1, 2, -1, -1, 2, 2, 1, -1, 0]), ignore_index=-1
        ).backward()
        optimizer.step()
        return model

    (line,) = [one for one in observed(program).of_parts if isinstance(one, Learning)]
    assert (line.counted, line.number, line.one_label) == (7, 10, 0)


def warmed(
    rate: Callable[[int], float], *, learns: bool = True, optimizer: Any = torch.optim.AdamW, every: int = EVERY
) -> list[str]:
    def program() -> nn.Module:
        model = net()
        made = optimizer(model.parameters(), 0.05)
        scheduler = torch.optim.lr_scheduler.LambdaLR(made, rate)
        for x, y in batches(random=not learns):
            made.zero_grad()
            F.cross_entropy(model(x), y).backward()
            made.step()
            scheduler.step()
        return model

    return all_faults(program, every=every)


def test_a_warm_up_that_does_not_end() -> None:
    (text,) = warmed(lambda step: min(1.0, (step + 1) / 1e6))
    why = "the warm-up has come to a learning rate of 2.75e-06 by step 54, 0.0055% of the scheduler's 0.05"
    assert text.startswith(f"the steps are too small ({why})")
    assert text.endswith("better than guessing among 3 classes (ln 3 = 1.099)")


def by_epoch(step: int) -> float:
    """A warm-up whose scheduler makes a step once per epoch of ten steps."""
    return (step // 10 + 1) / 6000


def each_step(step: int) -> float:
    """As far a warm-up, in as many steps as the program makes."""
    return (step + 1) / 60000


@pytest.mark.parametrize(("rate", "named"), [(by_epoch, True), (each_step, False)])
def test_a_warm_up_that_rises_by_epoch_is_the_cause_of_a_loss_that_does_not_fall(
    rate: Callable[[int], float], named: bool
) -> None:
    texts = warmed(rate, learns=False, every=1)
    words = "(the learning rate still rises, to 5e-05 by step 59, but not from one step to the next)"
    assert any(words in text for text in texts) is named


@pytest.mark.parametrize(
    ("rate", "learns"),
    [
        (lambda step: min(1.0, (step + 1) / 20), True),
        swept(lambda step: min(1.0, (step + 1) / 100), True),
        (lambda step: min(1.0, (step + 1) / 3000), False),  # 2 % of it: the run is shorter than the warm-up
    ],
)
def test_a_warm_up_that_goes_on_is_not_named(rate: Callable[[int], float], learns: bool) -> None:
    assert not any("warm-up" in text for text in warmed(rate, learns=learns))


@pytest.mark.parametrize(("levels", "little"), [([1.0] * 16, False), ([0.2, 1.8] * 8, True), ([1.0], True)])
def test_a_level_of_few_targets_tells_little(levels: list[float], little: bool) -> None:
    assert tells_little(Compared(1.05, 1.0, "the last 20 losses", 0.1), levels) is little
