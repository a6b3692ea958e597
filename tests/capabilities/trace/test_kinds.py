"""Kinds of hooks that never fire, that need no backward, that register, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from capabilities.trace.traced import WHOLE, traced
from support import Hand, Nested, exact_only, hooks_on
from torch import Tensor, nn
from torch.autograd import graph

import hookcli
from hookcli.capabilities.trace import probe as trace
from hookcli.capabilities.trace.probe import TraceProbe
from hookcli.errors import ModelError
from hookcli.hooks.kinds import REGISTRATION, HookKind


@exact_only
def test_a_kind_that_never_fired_is_said() -> None:
    report = traced(Hand(), torch.ones(1, 2))
    asked = {kind for kind in HookKind if "optimizer" in kind or "state_dict" in kind}
    assert {item.path for item in report.skipped} == {*REGISTRATION, *asked}
    fired = {row["kind"] for row in report.rows}
    assert fired.isdisjoint(item.path for item in report.skipped)
    assert fired | {item.path for item in report.skipped} == set(HookKind)


def test_a_kind_that_this_pytorch_has_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(graph, "node_creation_hook", raising=False)
    report = traced(Hand(), torch.ones(1, 2), "node_creation", "node")
    assert [(item.path, item.reason) for item in report.skipped] == [
        ("node_creation", "PyTorch has this hook since 2.14")
    ]
    assert {row["kind"] for row in report.rows} == {"node"}


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise AssertionError("backward ran")


class Ends(Hand):
    def forward(self, x: Tensor) -> Tensor:
        return NoBackward.apply(super().forward(x))


def test_kinds_that_need_no_backward_run_none() -> None:
    kinds = ("forward_pre", "forward", "state_dict_pre", "load_state_dict_post")
    report = traced(Ends(), torch.ones(1, 2), *kinds, step=hookcli.Step(state_dict=True))
    assert {row["kind"] for row in report.rows} == set(kinds) and "loss" not in report.meta
    with pytest.raises(ModelError, match="backward ran"):
        traced(Ends(), torch.ones(1, 2), "node")


class Built(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.layers.append(nn.Linear(3, 3, bias=False))
        self.add_module("lazy", nn.LazyLinear(2))
        self.dropped = nn.Tanh()
        del self.dropped
        nn.Linear(1, 1)
        self.own = nn.Parameter(torch.zeros(3))
        self.register_parameter("none", None)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) * self.scale + self.own
        return self.lazy(x)


def test_what_a_model_registers_while_it_is_built() -> None:
    probe = TraceProbe()
    before = hooks_on(Hand())
    with probe.building():
        model = Built()
    assert hooks_on(Hand()) == before
    (report,) = hookcli.capture(model, torch.ones(2, 3), [probe], **WHOLE)
    found = [(row["kind"], row.fqn, row["name"]) for row in report.rows if row["kind"] in REGISTRATION]
    assert found == [
        ("buffer_registration", "scale", None),
        ("parameter_registration", "layers.0.weight", None), ("parameter_registration", "layers.0.bias", None),
        ("module_registration", "layers.0", "Linear"), ("module_registration", "layers", "ModuleList"),
        ("parameter_registration", "layers.1.weight", None), ("module_registration", "layers.1", "Linear"),
        *[("parameter_registration", f"lazy.{name}", None) for name in ("weight", "weight", "bias")],
        ("module_registration", "lazy", "LazyLinear"), ("module_registration", "dropped", "Tanh"),
        ("parameter_registration", "(not in the model).weight", None),
        ("parameter_registration", "(not in the model).bias", None),
        ("parameter_registration", "own", None),
    ]  # fmt: skip
    kept = {row.fqn: 0 for row in report.rows}
    for row in report.rows:
        kept[row.fqn] += row["kept"] or 0
    assert kept["lazy"] == 2 * 3 * 4  # its input alone: its parameters are kept anyway


def test_registration_hooks_are_gone_after_a_model_that_fails_to_build() -> None:
    before = hooks_on(Hand())
    with pytest.raises(ZeroDivisionError), TraceProbe().building():
        nn.Linear(1, 1)
        raise ZeroDivisionError
    assert hooks_on(Hand()) == before


def test_an_edit_is_marked_where_it_shows() -> None:
    report = traced(Hand(), torch.ones(1, 2), "forward", "node", edits=["relu:output=scale(2)"])
    assert [row.fqn for row in report.rows if row.get("edited")] == ["relu"]


@pytest.mark.filterwarnings("ignore:For backward hooks to be called")
def test_outputs_that_full_backward_hooks_do_not_see_are_said() -> None:
    report = traced(Nested("dict"), torch.ones(2, 3), "full_backward_pre", "full_backward")
    assert {row.fqn for row in report.rows} == {"body"}
    assert [(item.fqn, item.path) for item in report.skipped] == [("", "full_backward")]


def headings_of_kinds() -> dict[str, str]:
    kinds = {*map(str, HookKind)}
    return {column.name: column.title for column in TraceProbe(summary=True).columns if column.name in kinds}


def test_the_headings_of_all_kinds_are_short_and_differ_and_no_short_word_is_unused() -> None:
    headings = headings_of_kinds()
    assert len(headings) == len(HookKind)
    assert len(set(headings.values())) == len(headings)
    assert max(len(word) for words in headings.values() for word in words.split(" ")) <= 6  # headings wrap
    assert all(words.strip() == words and words for words in headings.values()), headings
    for long, short in trace._SHORT.items():
        others = {key: value for key, value in trace._SHORT.items() if key != long}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trace, "_SHORT", others)
            assert headings_of_kinds() != headings, (long, short)


def test_strided_nested_tensors_leave_out_full_backward_hooks() -> None:
    class Pads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            ragged = torch.nested.nested_tensor([x[0], x[0, :2]])
            return self.layer(ragged).to_padded_tensor(0.0)

    report = traced(Pads(), torch.ones(2, 3, 4))
    assert report.meta.get("complete", True)
    reasons = {item.path: item.reason for item in report.skipped}
    assert "nested" in reasons["full_backward"].lower() and "forward" in {row["kind"] for row in report.rows}


def test_a_kind_that_did_not_fire_is_said_to_be_missing_in_this_pytorch_only_where_it_is() -> None:
    """A module without gradients makes no node, on any version."""
    model = nn.ReLU()
    with hookcli.watch(model, [TraceProbe([HookKind.NODE_CREATION])]) as watch:
        model(torch.ones(2))
    [report] = watch.reports()
    [reason] = [item.reason for item in report.skipped if item.path == "node_creation"]
    has = hasattr(torch.autograd.graph, "node_creation_hook")
    assert reason == ("never fired" if has else "PyTorch has this hook since 2.14")
