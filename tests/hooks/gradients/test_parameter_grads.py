"""Hooks on parameters, and edits of their gradients."""

from __future__ import annotations

import pytest
import torch
from support import untouched
from torch import Tensor, nn

import hookcli
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.session import HookSession


class Lazy(nn.Module):
    """A layer whose parameters have no size until it runs, behind one whose parameters have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lazy = nn.Linear(2, 3, bias=False), nn.LazyLinear(1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.lazy(self.first(x))


def test_edits_of_gradients_pass_over_parameters_without_a_size() -> None:
    model = Lazy()
    with hookcli.watch(model, probes=["grads"], edits=["*.weight:grad=zero"]) as seen:
        model(torch.ones(1, 2)).sum().backward()
    assert model.first.weight.grad is not None and not model.first.weight.grad.any()
    assert model.lazy.weight.grad is not None and model.lazy.weight.grad.any()
    assert "first.weight" in {row.fqn for row in seen.reports()[0].rows if row.get("edited")}


def test_a_frozen_parameter_is_not_edited_and_takes_no_hook() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].weight.requires_grad_(False)
    with untouched(model), HookSession(model) as session:
        session.post_accumulate_grad(lambda event: None)
        assert session.parameters.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
        assert session.hooked_parameters == {"0.bias", "1.weight", "1.bias"}


@pytest.mark.parametrize("kind", [HookKind.TENSOR_GRAD_PARAMETER, HookKind.POST_ACCUMULATE_GRAD, HookKind.MULTI_GRAD])
def test_each_kind_passes_over_parameters_without_a_size(kind: HookKind) -> None:
    model, seen = Lazy(), []
    with HookSession(model) as session:
        session.on(kind, lambda event: seen.append(event.fqn))
        assert session.hooked_parameters == {"first.weight"}
        output = model(torch.ones(1, 2)).sum()
        session.backward_begins([output])
        output.backward()
    assert sorted(seen) == (["", "first"] if kind is HookKind.MULTI_GRAD else ["first.weight"])
