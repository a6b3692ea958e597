"""Gradients that are zero in all recorded steps, and the function that lets none through."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.judging.headline import behind_flat
from hookcli.capabilities.learn.lines import ONE_NUMBER, Learning

STEPS = 5
Hidden = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """Two layers, with a function of the hidden values between them; and an attention by one score."""

    def __init__(self, hidden: Hidden | None) -> None:
        super().__init__()
        self.first, self.last, self.score = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)
        self.hidden = hidden or self.attended

    def attended(self, x: Tensor) -> Tensor:
        return x * self.score(x).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.hidden(self.first(x)))
        return scores


def through(x: Tensor) -> Tensor:
    return x + (x.sign() - x).detach()


def trained(make: Callable[[], nn.Module]) -> nn.Module:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(STEPS):
        x = torch.randn(32, 6)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
    return model


def zero_gradients(model: nn.Module) -> set[str]:
    """By PyTorch alone: the parameters whose gradient is zero everywhere."""
    F.cross_entropy(model(torch.randn(32, 6)), torch.randint(3, (32,))).backward()
    return {fqn for fqn, p in model.named_parameters() if p.grad is not None and not p.grad.any()}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Net(torch.sign), "torch.sign lets no gradient through (x + (torch.sign(x) - x).detach() does): "),
        *(swept(lambda f=f: Net(f), f"torch.{f.__name__} lets") for f in (torch.round, torch.floor, torch.ceil)),
        (lambda: Net(None), "a softmax over one number (dimension 1 of 32x1) always returns 1"),
    ],
)
def test_what_lets_no_gradient_through(make: Callable[[], nn.Module], words: str) -> None:
    lines = [one for one in observed(lambda: trained(make)).of_parts if isinstance(one, Learning)]
    text = lines[-1].flat
    assert text.startswith(words)
    assert (text in all_faults(lambda: trained(make))) is words.startswith("torch.")
    zero = zero_gradients(make())
    assert zero and f" and {len(zero) - 1} more (" in text and any(f"gradients of {fqn} and" in text for fqn in zero)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net(through),
        lambda: Net(lambda x: x - x.detach().round()),
        lambda: Net(lambda x: torch.cat([x[:, :8], x[:, 8:].sign()], 1)),
    ],
)
def test_gradients_that_come_another_way(make: Callable[[], nn.Module]) -> None:
    assert not zero_gradients(make())
    assert not all_faults(lambda: trained(make))


class Apart(nn.Module):
    """A layer whose gradient is zero for another reason, beside a function that lets none through."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last, self.idle = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        scores: Tensor = self.last(hidden - hidden.round() + hidden.detach()) + 0 * self.idle(x)
        return scores


def test_a_zero_gradient_of_another_reason() -> None:
    assert zero_gradients(Apart()) == {"idle.weight", "idle.bias"}
    assert not any("lets no gradient" in text for text in all_faults(lambda: trained(Apart)))


class Clipped(nn.Module):
    """A quantizer whose gradient goes around round(), and whose upper bound nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.bound = nn.Linear(6, 16), nn.Linear(16, 3), nn.Parameter(torch.full((16,), 100.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.minimum(self.first(x), self.bound)
        scores: Tensor = self.last(hidden.round() + hidden - hidden.detach())
        return scores


def test_a_gradient_that_goes_around_the_function() -> None:
    assert zero_gradients(Clipped()) == {"bound"}
    assert not any("lets no gradient" in text for text in all_faults(lambda: trained(Clipped)))


@pytest.mark.parametrize("words", [f"{ONE_NUMBER} (...) always returns 1", "torch.sign lets no gradient through"])
def test_a_softmax_over_one_number_is_a_remark(words: str) -> None:
    lines = [Learning("Net", step, flat=words) for step in range(5)]
    verdict, remark = behind_flat(lines), behind_flat(lines, harmless=True)
    assert [verdict, remark] == (["", words] if words.startswith(ONE_NUMBER) else [words, ""])
