"""HK034, HK036 and HK037 on families of models: those that they must catch, and near misses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from checks.broken import Fn
from checks.wired import findings
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hookcli import check

CLASSES = torch.arange(16) % 4


def places(model: nn.Module, x: Any = None, **settings: Any) -> list[tuple[str, str]]:
    return [found[:2] for found in findings(model, x, **settings)]


# HK034.


def ending(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), *layers)


def ce(y: Tensor) -> Tensor:
    return F.cross_entropy(y, CLASSES)


def loss_in_forward(to_loss: Callable[[Tensor], Tensor]) -> nn.Module:
    return Fn(lambda y: {"loss": to_loss(y)})


DOUBLED: dict[str, tuple[nn.Module, Any, str]] = {
    "a last layer": (ending(nn.Softmax(-1)), "cross-entropy", "1"),
    "a last layer, arranged": (ending(nn.Softmax(-1), nn.Unflatten(0, (4, 4))), lambda y: ce(y.flatten(0, 1)), "1"),
    "the model's own loss": (loss_in_forward(lambda y: ce(y.softmax(1))), None, ""),
    "smoothed": (loss_in_forward(lambda y: F.cross_entropy(y.softmax(1), CLASSES, label_smoothing=0.1)), None, ""),
    "soft targets": (loss_in_forward(lambda y: F.cross_entropy(y.softmax(1), torch.ones(16, 4) / 4)), None, ""),
    "log_softmax": (ending(nn.Softmax(-1)), lambda y: F.nll_loss(y.double().log_softmax(1)[:8], CLASSES[:8]), "1"),
    "sigmoid": (ending(nn.Sigmoid()), lambda y: F.binary_cross_entropy_with_logits(y, torch.ones(16, 4)), "1"),
}  # fmt: skip
FINE: dict[str, tuple[nn.Module, Any]] = {
    "logits": (ending(), "cross-entropy"),
    "log_softmax and nll_loss": (ending(nn.LogSoftmax(-1)), lambda y: F.nll_loss(y, CLASSES)),
    "softmax, its logarithm and nll_loss": (ending(nn.Softmax(-1)), lambda y: F.nll_loss(y.log(), CLASSES)),
    "log_softmax and cross_entropy": (ending(nn.LogSoftmax(-1)), "cross-entropy"),
    "softmax and kl_div": (ending(), lambda y: F.kl_div(y.log_softmax(1), y.softmax(1), reduction="batchmean")),
    "softmax of the target": (ending(), lambda y: F.cross_entropy(y, (2 * y).softmax(1))),
    "attention": (Fn(lambda y: (y @ y.T).softmax(-1) @ y), "cross-entropy"),
    "sigmoid and binary_cross_entropy": (ending(nn.Sigmoid()), lambda y: F.binary_cross_entropy(y, torch.ones(16, 4))),
    "a gate": (Fn(lambda y: y * y.sigmoid()), "cross-entropy"),
}


@pytest.mark.parametrize("name", DOUBLED)
def test_probabilities_that_a_loss_takes_for_logits(name: str) -> None:
    model, loss, fqn = DOUBLED[name]
    said = findings(model, loss=loss)
    assert [found[:2] for found in said] == [("HK034", fqn)]
    assert ("its sigmoid" if name == "sigmoid" else "its softmax") in said[0][2]


@pytest.mark.parametrize("name", FINE)
def test_losses_that_get_what_they_expect(name: str) -> None:
    model, loss = FINE[name]
    assert findings(model, loss=loss) == []


def test_a_doubled_softmax_is_found_without_values() -> None:
    with torch.device("meta"):
        model, x = ending(nn.Softmax(-1)), torch.empty(16, 4)
    report = check(model, x, select="HK034", loss="cross-entropy")
    assert [found.fqn for found in report.findings] == ["1"]


# HK036.


def twice(y: Tensor) -> Tensor:
    return y.mul_(2)


def past_the_count(y: Tensor) -> Tensor:
    y.data.mul_(2)
    return y


def in_numpy(y: Tensor) -> Tensor:
    y.numpy()[0] = 0.0
    return y


def in_a_view(y: Tensor) -> Tensor:
    y.T[::2] = 0.0
    return y


@pytest.mark.parametrize("write", [twice, past_the_count, in_numpy, in_a_view])
def test_an_input_that_is_changed(write: Callable[[Tensor], Tensor]) -> None:
    with torch.inference_mode():
        inference = torch.randn(16, 4)
    for x in (torch.randn(16, 4), torch.randn(16, 4).T.contiguous().T, inference):
        assert places(Fn(before=write), x.clone() if x is inference else x) == [("HK036", "")]
        assert places(Fn(before=lambda x: write(x.clone())), x) == []


def test_where_an_input_is_changed_first() -> None:
    inner = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.ReLU(inplace=True))
    assert places(nn.Sequential(inner, nn.Linear(4, 2))) == [("HK036", "0.1")]
    ops = findings(Fn(before=twice), ops="functions")
    assert [found[1] for found in ops] == [":mul__1"] and ops[0][2] == "changes the model's input in place"

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            y: Tensor = self.layer(a + b.clamp_(0))
            return y

    a, b = torch.randn(2, 4), torch.randn(2, 4)
    assert findings(Two(), {"a": a, "b": b}) == [("HK036", "", "changes the model's input b in place", 1)]


# HK037.


class Uses(nn.Module):
    """Calls `use` on itself and the output of its layer; `held` is a plain attribute."""

    def __init__(self, held: Any, use: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.held, self.use = nn.Linear(4, 4), held, use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, self.layer(x))


def keep(own: Any, y: Tensor) -> Tensor:
    y = y * own.held
    own.held = y.detach()
    return y


def update(own: Any, y: Tensor) -> Tensor:
    return y * own.held.mul_(0.9)


def square() -> Tensor:
    return torch.randn(4, 4)


WEIGHTS: dict[str, Uses] = {
    "a product": Uses(square(), lambda own, y: y @ own.held),
    "transposed and scaled": Uses(square(), lambda own, y: y @ (own.held.T * 0.5)),
    "linear": Uses(square(), lambda own, y: F.linear(y, own.held)),
    "einsum": Uses(square(), lambda own, y: torch.einsum("bi,ij->bj", y, own.held)),
    "a gain of ones": Uses(torch.ones(4), lambda own, y: y * own.held),
    "of a norm": Uses(torch.ones(4), lambda own, y: F.layer_norm(y, (4,), own.held)),
    "a kernel in a list": Uses([torch.randn(1, 1, 3)], lambda own, y: F.conv1d(y[:, None], own.held[0])[:, 0]),
    "made of a tensor that requires grad": Uses(torch.randn(4, requires_grad=True) * 0.1, lambda own, y: y * own.held),
}
TABLES: dict[str, Uses] = {
    "a parameter": Uses(nn.Parameter(square()), lambda own, y: y @ own.held),
    "a buffer": Uses(nn.Buffer(square()), lambda own, y: y @ own.held),
    "a copy of a parameter's memory": Uses(square(), lambda own, y: y @ own.layer.weight.detach()),
    "a mask": Uses(torch.tensor([0.0, 1.0, 1.0, 0.0]), lambda own, y: y * own.held),
    "a mask that is added": Uses(torch.tensor([0.0, -1e9, -torch.inf, 0.0]), lambda own, y: (y + own.held).exp()),
    "positions": Uses(torch.arange(4.0), lambda own, y: (y * own.held).sum(-1, keepdim=True)),
    "a filter": Uses(torch.tensor([[[-1.0, 0.0, 1.0]]]), lambda own, y: F.conv1d(y[:, None], own.held)[:, 0]),
    "indices": Uses(torch.tensor([3, 2, 1, 0]), lambda own, y: y[:, own.held]),
    "a scale": Uses(torch.tensor(0.5), lambda own, y: y * own.held),
    "moved by the code": Uses(square(), lambda own, y: y @ own.held.to(y.device)),
    "a cache": Uses(torch.randn(16, 4), keep),
    "a running average": Uses(torch.randn(4), update),
    "unused": Uses(square(), lambda own, y: y),
    "used alone": Uses(square(), lambda own, y: y + (own.held @ own.held).mean()),
    "with a parameter": Uses(square(), lambda own, y: y + (own.held @ own.layer.weight.T).mean()),
    "requires grad": Uses(torch.randn(4, requires_grad=True), lambda own, y: y * own.held),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_plain_tensor_that_is_used_as_a_weight(name: str) -> None:
    model = WEIGHTS[name]
    held = model.held[0] if isinstance(model.held, list) else model.held
    shape = "x".join(map(str, held.shape))
    said = f"computes with held, a plain tensor ({shape}): not trained, saved or moved by to()"
    assert findings(nn.Sequential(nn.Linear(4, 4), model)) == [("HK037", "1", said, held.numel())]


@pytest.mark.parametrize("name", TABLES)
def test_tensors_that_are_no_weights(name: str) -> None:
    assert findings(TABLES[name]) == []
