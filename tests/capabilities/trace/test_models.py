"""The sequence of hooks of models that fail, that have no gradients, that differentiate or checkpoint."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from capabilities.trace.traced import WHOLE, events, traced
from support import Hand, Nested, untouched
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hookcli.errors import ModelError, UsageError


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("when", ["forward", "backward"])
@pytest.mark.parametrize("globally", [False, True])
def test_a_hook_of_the_users_that_raises(error: type[BaseException], when: str, globally: bool) -> None:
    model = Hand()

    def fail(*args: Any) -> None:
        raise error("theirs")

    if when == "forward":
        model.out.register_forward_hook(fail)
    else:
        model.first.weight.register_hook(fail)
    kind = ModelError if error is ValueError else KeyboardInterrupt
    with untouched(model), pytest.raises(kind) as caught:
        traced(model, torch.ones(1, 2), globally=globally, **WHOLE)
    (report,) = caught.value.reports  # type: ignore[attr-defined]
    assert ("forward", "relu") in events(report) and ("optimizer_step_pre", "") not in events(report)
    if error is ValueError:
        assert "ValueError: theirs" in str(caught.value)


def test_a_model_without_gradients_shows_its_forward() -> None:
    model = Hand().requires_grad_(False)
    with untouched(model), pytest.raises(UsageError, match="no gradients") as caught:
        traced(model, torch.ones(1, 2), **WHOLE)
    (report,) = caught.value.reports
    assert events(report)[:2] == [("forward_pre", ""), ("forward_pre", "first")] and ("forward", "") in events(report)


class RunsBackward(Hand):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        torch.autograd.grad(y.sum(), [self.first.weight], retain_graph=True)
        return y


def test_a_forward_that_differentiates() -> None:
    """Multi-grad hooks on leaves raise in `autograd.grad`: they must not be on yet."""
    model = RunsBackward()
    with untouched(model):
        report = traced(model, torch.ones(1, 2), **WHOLE)
    assert {fqn for kind, fqn in events(report) if kind == "multi_grad"} == {"", "first", "out"}
    assert events(report).count(("tensor_grad_parameter", "first.weight")) == 2


def test_a_graph_that_an_earlier_backward_freed() -> None:
    class Frees(Hand):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            y.sum().backward()
            return y

    model = Frees()
    with untouched(model), pytest.raises(ModelError, match="the graph was freed by an earlier backward"):
        traced(model, torch.ones(1, 2), **WHOLE)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.block = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, self.first(x), use_reentrant=reentrant)

    model = Checkpointed()
    with untouched(model):
        report = traced(model, torch.ones(2, 3), **WHOLE)
    count = Counter(events(report))
    assert count["forward", "block.0"] == count["forward", "block"] == 1  # a recomputation is not a call
    assert count["post_accumulate_grad", "block.0.weight"] == count["post_accumulate_grad", "first.weight"] == 1


@pytest.mark.filterwarnings("ignore:For backward hooks to be called")
@pytest.mark.parametrize(("model", "x"), [
    (nn.LSTM(4, 3, 2), torch.randn(5, 2, 4)),
    (Nested("dict"), torch.ones(2, 3)),
    (Nested("dataclass"), torch.ones(2, 3)),
    (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval(), torch.randn(2, 3, 8)),
])  # fmt: skip
def test_models_of_other_shapes(model: nn.Module, x: Tensor) -> None:
    with untouched(model):
        report = traced(model, x, **WHOLE)
    parameters = {name for name, _ in model.named_parameters()}
    assert {fqn for kind, fqn in events(report) if kind == "post_accumulate_grad"} == parameters
