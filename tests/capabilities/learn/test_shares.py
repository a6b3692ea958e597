"""Models of which next to nothing is trained, or that drop next to all values: causes of a loss that stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import nn
from torch.nn import functional as F  # noqa: N812

STEPS = 60


def net(share: float = 0.0, *, frozen: bool = False) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(share), nn.ReLU(), nn.Linear(64, 3))
    if frozen:
        model.requires_grad_(False)
        model[3].bias.requires_grad_(True)
    return model


def trained(model: nn.Module, lr: float, *, random: bool) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(STEPS):
        x = torch.randn(32, 6)
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(3, (32,)) if random else x[:, :3].argmax(1)).backward()
        optimizer.step()
    return model


DROPS = "1 drops 95% of the values"
FROZEN = "the steps are too small (3 of 643 weights are trained, with a learning rate of 1e-05)"


@pytest.mark.parametrize(
    ("make", "lr", "words"),
    [
        (lambda: net(0.95), 0.02, DROPS),
        swept(lambda: net(0.5), 0.02, ""),
        swept(lambda: net(0.95).eval(), 0.02, ""),
        (lambda: net(frozen=True), 1e-5, FROZEN),
    ],
)
def test_causes_of_labels_that_are_not_learned(make: Callable[[], nn.Module], lr: float, words: str) -> None:
    texts = [text for text in all_faults(lambda: trained(make(), lr, random=True), every=6) if "guessing" in text]
    assert len(texts) == 1
    assert [text.startswith(words) for text in texts] == [True]
    assert words or not any(one in texts[0] for one in ("drops", "are trained"))


def test_all_values_dropped_explain_an_output_that_is_the_same_for_all() -> None:
    text, *_ = all_faults(lambda: trained(net(1.0), 0.02, random=False), every=6)
    assert text.startswith("1 drops 100% of the values; the output does not depend on the input")


def test_a_model_that_learns_may_drop_much() -> None:
    assert not all_faults(lambda: trained(net(0.9), 0.5, random=False), every=6)
