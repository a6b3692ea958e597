"""Adapters that were frozen with the model that they adapt, and matrices of zeros that may be frozen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

STEPS, SIZE, WIDTH, CLASSES = 8, 16, 6, 4


class Adapted(nn.Module):
    """A layer with an adapter of low rank, which begins at zero."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(2, WIDTH))
        self.lora_b = nn.Parameter(torch.zeros(WIDTH, 2))

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + x @ self.lora_a.T @ self.lora_b.T
        return adapted


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return scores


def fit(model: nn.Module) -> None:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.01)
    for _ in range(STEPS):
        x = torch.randn(SIZE, WIDTH)
        loss = F.cross_entropy(model(x), x[:, :CLASSES].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def adapt(model: Net) -> None:
    model.first, model.second = Adapted(model.first), Adapted(model.second)  # type: ignore[assignment]


def frozen_too(model: Net) -> None:
    adapt(model)
    model.requires_grad_(False)
    model.head = nn.Linear(WIDTH, CLASSES)


def frozen_before(model: Net) -> None:
    model.requires_grad_(False)
    adapt(model)
    model.head = nn.Linear(WIDTH, CLASSES)


def head_alone(model: Net) -> None:
    model.requires_grad_(False)
    model.head = nn.Linear(WIDTH, CLASSES)


def with_token(model: Net) -> None:
    """A frozen token of zeros, as of torchvision's vision transformers, and a frozen bias."""
    head_alone(model)
    model.first.register_parameter("token", nn.Parameter(torch.zeros(1, 1, WIDTH), requires_grad=False))
    nn.init.zeros_(model.second.bias)


def tuned(change: Callable[[Net], None], *, before: bool = True) -> Callable[[], nn.Module]:
    """A model that is trained, changed, and trained again by another optimizer."""

    def program() -> nn.Module:
        model = Net()
        if before:
            fit(model)
        change(model)
        fit(model)
        return model

    return program


@pytest.mark.parametrize("before", [True, swept(False)])
def test_adapters_that_are_frozen_at_zero_are_named(before: bool) -> None:
    (text, *_) = all_faults(tuned(frozen_too, before=before))
    assert text == (
        "first.lora_b, second.lora_b: frozen (requires_grad=False) at zero, so that they change nothing: "
        "if they are adapters, freeze the rest before adding them"
    )


def with_prior(model: Net) -> None:
    """What a loss or a layer may read: the mean of a prior, and its width; the first state of a recurrent layer."""
    head_alone(model)
    for layer in (model.first, model.second):
        layer.register_parameter("prior_mean", nn.Parameter(torch.zeros(WIDTH, 3), requires_grad=False))
        layer.register_parameter("prior_width", nn.Parameter(torch.ones(WIDTH, 3), requires_grad=False))
    model.register_parameter("h0", nn.Parameter(torch.zeros(2, 3, WIDTH), requires_grad=False))


def beside_reference(model: Net) -> None:
    """The adapters of one layer are trained, and those of the other are what they began with."""
    frozen_before(model)
    model.second.requires_grad_(False)


@pytest.mark.parametrize("change", [frozen_before, head_alone, with_token, with_prior, beside_reference])
def test_other_frozen_parts_are_not_accused(change: Callable[[Net], None]) -> None:
    """They have kept the gradients of the training before, which are in no optimizer now."""
    assert not all_faults(tuned(change))


def test_adapters_that_are_trained_in_the_end_are_not_accused() -> None:
    """No step that trains them was recorded."""

    models: list[nn.Module] = []

    def program() -> nn.Module:
        model = Net()
        models.append(model)
        frozen_too(model)
        fit(model)
        for layer in (model.first, model.second):
            layer.lora_b.requires_grad_(True)  # type: ignore[union-attr]
        return model

    assert not [line for line in all_faults(program) if "lora" in line]
