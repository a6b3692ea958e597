"""Models without an activation function, a momentum as of Keras, and optimizers that step without a backward pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capabilities.learn.test_misused import all_faults
from capabilities.learn.test_parts import measured
from observing import observed
from support import swept
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli.capabilities.learn.forwards.linear import linear_layers
from hookcli.capabilities.learn.judging.checks import learned
from hookcli.capabilities.learn.judging.headline import faults, of_settings

STEPS, SIZE = 150, 64


def train(model: nn.Module, *, backward: Callable[[Tensor], object] = Tensor.backward, steps: int = STEPS) -> nn.Module:
    """Whether two numbers have the same sign: no linear model can tell."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        x = torch.randn(SIZE, 2)
        loss = F.cross_entropy(model(x), (x[:, 0] * x[:, 1] > 0).long())
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
    return model


def layers(between: Callable[[], nn.Module] = nn.Identity) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 16), between(), nn.Linear(16, 16), between(), nn.Linear(16, 2))


WORDS = "no activation function stands between layers: the 3 layers with weights do what one linear layer does"


@pytest.mark.parametrize("between", [nn.Identity, swept(lambda: nn.Dropout(0.1)), swept(lambda: nn.BatchNorm1d(16))])
def test_a_model_without_an_activation_function_is_named(between: Callable[[], nn.Module]) -> None:
    (text,) = all_faults(lambda: train(layers(between)))
    assert text.startswith(f"{WORDS}: put an activation function between them, such as ReLU; ")
    assert text.endswith("no better than guessing among 2 classes (ln 2 = 0.6931)")


def test_a_model_with_activation_functions_is_not_accused() -> None:
    assert not all_faults(lambda: train(layers(nn.Tanh)))


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.a(x) * self.b(x)
        return product


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(6, 6, bias=False), nn.Linear(6, 4), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.cat([self.a(x) * self.scale, x], 0)).mean(0) / 2


class Words(nn.Module):
    """A bag of words, which is a usual model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.embed(x.long().abs() % 9).mean(1))
        return scores


class Bent(nn.Module):
    """Two layers with something between them that a graph of gradients shows as a factor or addend."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(6, 6), between, nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.between(self.first(x)))
        return scores


def best_alone(h: Tensor) -> Tensor:
    """The largest number of each row, as experts and winners are chosen."""
    return h * (h == h.max(1, keepdim=True).values)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3), nn.BatchNorm1d(3), nn.Conv1d(3, 2, 3))


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (lambda: nn.Linear(6, 4), 1),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4)), 2),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)), 0),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 4)), 0),
        (convolutions, 2),
        (Product, 0),
        (lambda: Bent(lambda h: h * (h > 0)), 0),
        (lambda: Bent(lambda h: h + (h.sign() - h).detach()), 0),
        (lambda: Bent(best_alone), 0),
        (lambda: Bent(lambda h: h * torch.arange(6.0)), 0),  # which may come from the data
        (lambda: Bent(nn.Dropout(0.5)), 2),
        (lambda: Bent(lambda h: 2 * h), 2),
        (Scaled, 2),
        (Words, 0),
        (lambda: nn.Bilinear(6, 6, 4), 0),
    ],
)
def test_how_many_layers_are_linear_together(make: Callable[[], nn.Module], number: int) -> None:
    model = make()
    x = torch.randn(5, 6)
    outputs = model(x, x) if isinstance(model, nn.Bilinear) else model(x)
    assert linear_layers([outputs]) == number


def settings(momentum: float | None) -> list[str]:
    return [*of_settings(learned(measured(observed(lambda: train(normalized(momentum), steps=4))).lines))]


def normalized(momentum: float | None) -> nn.Sequential:
    norm = nn.BatchNorm1d(8, momentum=momentum)
    return nn.Sequential(nn.Linear(2, 8), norm, nn.ReLU(), nn.Linear(8, 2))


def test_a_momentum_as_of_keras_is_remarked_on() -> None:
    (text,) = settings(0.99)
    mostly = "so that running statistics are next to those of the last batch alone"
    share = "PyTorch's momentum is the share of the new batch (0.1 by default)"
    assert text == f"1 (BatchNorm1d) has a momentum of 0.99, {mostly}; {share}"
    assert not settings(0.1) and not settings(None)


def test_a_frozen_normalization_does_not_gather_statistics() -> None:
    def program() -> nn.Module:
        model = normalized(0.99)
        model[1].eval()
        return train(model, steps=4)

    assert not [*of_settings(learned(measured(observed(program)).lines))]


def test_an_optimizer_that_steps_without_a_backward_pass() -> None:
    words = "the optimizer makes steps, but no backward pass ever begins: call loss.backward(), with parentheses"
    first, *_ = all_faults(lambda: train(layers(nn.Tanh), backward=lambda loss: loss.backward, steps=12))
    assert first == words


class Oja(torch.optim.Optimizer):
    """Oja's rule (Oja 1982), which needs no gradients."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__([weight], {"lr": 0.01})

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for w in group["params"]:
                w += group["lr"] * (y.T @ x - y.T @ y @ w) / len(x)


def test_an_optimizer_may_do_without_gradients() -> None:
    def program() -> nn.Module:
        model = nn.Linear(6, 3, bias=False)
        optimizer = Oja(model.weight)
        for _ in range(12):
            x = torch.randn(SIZE, 6)
            optimizer.step(x, model(x))
        return model

    seen = measured(observed(program, check=True))
    assert not [*faults(seen)]


def test_gradients_by_hand_need_no_backward_pass() -> None:
    def by_hand() -> nn.Module:
        model = layers(nn.Tanh)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(12):
            with torch.no_grad():
                model(torch.randn(SIZE, 2))
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            optimizer.step()
        return model

    assert "no backward pass" not in " ".join(all_faults(by_hand))
