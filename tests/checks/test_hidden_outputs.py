"""Outputs in which no tensor is seen: objects and distributions, of which no loss can be made without the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import each_once, swept, untouched
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from hookcli import check

_FIRST = torch.tensor([True, False, False, False])


class Held:
    """Keeps what it gets behind `__getattr__`, somewhat as detectron2's Instances do."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Net(nn.Module):
    def __init__(self, made: Callable[[Tensor], Any], training: bool = True) -> None:
        super().__init__()
        self.layer, self.made, self.also_training = nn.Linear(6, 4), made, training

    def forward(self, x: Any) -> Any:
        y = self.layer(x if isinstance(x, Tensor) else x._fields["x"])
        return self.made(y) if self.also_training or not self.training else y


BAD = {
    "a plain object": lambda y: Held(scores=y * 0 / 0),
    "an object in a dict": lambda y: {"out": Held(scores=[y / (y - y)])},
    "a distribution": lambda y: Normal(y, (-y.square() - 1).sqrt(), validate_args=False),
    "a distribution in another": lambda y: Independent(Normal((-y.exp()).log(), 1.0, validate_args=False), 1),
}
GOOD = {
    "a plain object": lambda y: Held(scores=y),
    "a distribution": lambda y: Normal(y, y.exp()),
    "a distribution in another": lambda y: Independent(Normal(y, y.exp()), 1),
    "a mixture": lambda y: MixtureSameFamily(Categorical(logits=y), Normal(y, 1.0)),
    "actions that are not allowed": lambda y: Categorical(logits=y.masked_fill(_FIRST, -torch.inf)),
}


@pytest.mark.parametrize(("ops", "training", "case"), each_once([swept(None), "functions"], [True, False], BAD))
def test_what_is_not_finite_in_an_object_is_found(case: str, training: bool, ops: Any) -> None:
    model, x = Net(BAD[case], training), torch.randn(8, 6)
    with untouched(model):
        report = check(model, x, ops=ops)
    [finding] = report.findings
    assert finding.check == "HK003" and finding.message.startswith("in eval mode without gradients: 32 of ")


@pytest.mark.parametrize(("ops", "case"), each_once([None, "functions"], GOOD))
def test_without_a_loss_gradients_are_not_judged(case: str, ops: Any) -> None:
    report = check(Net(GOOD[case]), torch.randn(8, 6), ops=ops)
    reasons = {item.fqn.split()[0]: item.reason for item in report.skipped}
    why = "not judged: the model returned no floating-point tensor; give --loss"
    assert not report.findings and report.meta["complete"] and "HK003" not in reasons
    assert reasons["HK004"] == reasons["HK008"] == reasons["HK009"] == why


def test_a_loss_of_ones_own_is_differentiated() -> None:
    report = check(
        Net(GOOD["a distribution"]), torch.randn(8, 6), loss=lambda d: -d.log_prob(d.mean.detach() + 1).sum()
    )
    assert not report.findings and {"HK004", "HK008", "HK009"} <= {*report.meta["checks"]}


@pytest.mark.parametrize("made", [lambda y: "text", lambda y: None, lambda y: Held(text="text")])
def test_an_output_without_a_tensor_is_not_judged(made: Any) -> None:
    report = check(Net(made), torch.randn(8, 6))
    assert not report.findings
    [reason] = [item.reason for item in report.skipped if item.fqn.startswith("HK003")]
    assert reason == "the model's output was not judged: no tensor was found in it"


def test_what_came_with_the_input_is_not_the_models() -> None:
    labels = torch.full((5,), torch.nan)
    given = Held(x=torch.randn(5, 6), y=labels)
    assert not check(Net(lambda y: Held(scores=y, y=labels)), given).findings
    [finding] = check(Net(lambda y: Held(scores=y, y=labels * 1)), given).findings
    assert finding.check == "HK003"
