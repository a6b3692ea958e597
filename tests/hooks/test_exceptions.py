"""Exceptions around hooks: a session that cannot begin, and modules that run while an exception is handled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import Hand, Nested, untouched
from torch import Tensor, nn

import hookcli
from hookcli.hooks.edits.base import parse_edit
from hookcli.hooks.session import HookSession


class Refuses(nn.Parameter):
    """A parameter that takes no hooks."""

    error: type[BaseException]

    def register_hook(self, hook: Any) -> Any:
        raise self.error("no hooks here")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_session_that_cannot_begin_leaves_nothing(error: type[BaseException]) -> None:
    model = Hand()
    model.out.weight = Refuses(model.out.weight.detach())
    model.out.weight.error = error
    edits = [parse_edit("relu:output=scale(2)"), parse_edit("*.weight:grad=scale(2)")]
    with untouched(model), pytest.raises(error, match="no hooks here"), HookSession(model, fastpath=False, edits=edits):
        raise AssertionError("the block runs")
    model(torch.ones(1, 2)).sum().backward()
    assert model.first.weight.grad is not None and model.first.weight.grad.unique().tolist() == [3.0]


class Recovers(nn.Module):
    """Calls a part that returns nothing while it handles an exception, and one that fails and returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing, self.fails = Nested("none"), Fails()

    def forward(self, x: Tensor) -> Tensor:
        try:
            raise KeyError("lost")
        except KeyError:
            self.nothing(x)
            try:
                self.fails(x)
            except ValueError:
                self.nothing(x)
        self.nothing(x)
        return x


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("not now")


@pytest.mark.parametrize("globally", [False, True])
def test_a_module_that_returns_none_while_an_exception_is_handled_has_not_failed(globally: bool) -> None:
    model, seen = Recovers(), []
    with untouched(model), HookSession(model, globally=globally) as session:
        session.forward(lambda event: seen.append((event.fqn, event.call, event.output is None)))
        model(torch.ones(1, 3))
        assert session.ended_by_exceptions() == {"fails": {0: "ValueError"}}
    called = [(fqn, call) for fqn, call, nothing in seen if nothing]
    assert called == [("nothing", 0), ("nothing", 1), ("nothing", 2)]
    assert [fqn for fqn, _, nothing in seen if not nothing] == ["nothing.body"] * 3 + [""]


def test_a_call_that_an_exception_ended_is_told_and_one_that_returned_none_is_not() -> None:
    [report] = hookcli.capture(Recovers(), torch.ones(1, 3), ["activations"])
    reasons = {item.fqn: item.reason for item in report.skipped}
    assert reasons["fails"] == "its call raised ValueError and returned nothing"
    assert reasons["nothing"] == "returned no tensor that can be seen (NoneType)"
