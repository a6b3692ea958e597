"""Hooks on autograd nodes: which node is whose, told at once or (torch before 2.14) by the outputs of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import Hand, exact_only, untouched
from torch import Tensor, nn
from torch.autograd import graph
from torch.nn.functional import gelu, relu

import hookcli
from hookcli.hooks.events import NodeInfo
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.node_hooks import gradient_accumulator, walk
from hookcli.hooks.session import HookSession


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grads[0]


class Mixed(nn.Module):
    """Functional operations, a layer that is called twice, a Function, and a block that has operations of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4, bias=False)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        h = relu(self.a(x))
        h = h + self.a(h)
        return Square.apply(self.norm(self.block(h)))


# Each of the model's nodes and where it comes from, written down by hand from the code above: in eager PyTorch a linear
# layer without bias is t, mm; one with bias t, addmm; and a parameter's node belongs to the parameter.
MIXED = [
    ("AccumulateGrad", "a.weight", 0), ("AccumulateGrad", "block.0.bias", 0), ("AccumulateGrad", "block.0.weight", 0),
    ("AccumulateGrad", "norm.bias", 0), ("AccumulateGrad", "norm.weight", 0), ("AddBackward0", "", 0),
    ("AddmmBackward0", "block.0", 0), ("MmBackward0", "a", 0), ("MmBackward0", "a", 1),
    ("NativeLayerNormBackward0", "norm", 0), ("ReluBackward0", "", 0), ("SquareBackward", "", 0),
    ("SumBackward0", "(loss)", 0), ("TBackward0", "a", 0), ("TBackward0", "a", 1), ("TBackward0", "block.0", 0),
    ("TanhBackward0", "block.1", 0),
]  # fmt: skip


def made(model: nn.Module, x: Any, loss: Callable[[Any], Tensor] = torch.sum) -> list[NodeInfo]:
    """The nodes of a forward and backward, after the session."""
    with HookSession(model) as session:
        session.on(HookKind.NODE, lambda event: None)
        value = loss(model(x))
        session.backward_begins([value])
        value.backward()
        model.zero_grad()
        return [made for made in session.nodes.made if not made.ours]


def places(nodes: list[NodeInfo]) -> list[tuple[str, str, int]]:
    """Without the calls of parameters: their node is made at the first use."""
    return sorted((n.name, n.fqn, 0 if n.name == "AccumulateGrad" else n.call) for n in nodes)


def by_expansion(leaf: Tensor) -> graph.Node:
    """The gradient accumulator as data-parallel optimizers reach it: behind a view of the leaf."""
    with torch.enable_grad():
        view = leaf.expand_as(leaf)
    return view.grad_fn.next_functions[0][0]


def test_every_node_is_told_by_the_module_whose_forward_made_it(way: str) -> None:
    assert places(made(Mixed(), torch.randn(3, 4))) == MIXED


def test_the_nodes_are_those_of_the_graph_and_lead_on_as_it_does(way: str) -> None:
    """`next` against `next_functions`, walked in the test."""
    model, edges = Mixed(), {}
    with HookSession(model) as session:
        session.on(HookKind.NODE, lambda event: None)
        value = model(torch.randn(3, 4)).sum()
        session.backward_begins([value])
        waiting, seen = [value.grad_fn], {}
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen[node] = next(m for m in node.metadata.values() if isinstance(m, NodeInfo)).id
            waiting += [after for after, _ in node.next_functions if after is not None]
        for node, number in seen.items():
            edges[number] = [None if after is None else seen[after] for after, _ in node.next_functions]
        assert {m.id: session.nodes.following(m) for m in session.nodes.made if not m.ours} == edges
    assert len(edges) == len(MIXED)


def test_an_operation_in_place_on_a_view(way: str) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            y[:, 0].mul_(2)
            return y

    assert {n.fqn for n in made(Writes(), torch.ones(2, 4)) if n.name == "CopySlices"} == {""}


def test_a_leaf_that_is_no_parameter_is_called_so(way: str) -> None:
    x = torch.ones(1, 2, requires_grad=True)
    nodes = made(Hand(), x)
    assert [n.fqn for n in nodes if n.name == "AccumulateGrad" and "." not in n.fqn] == ["(leaf)"]


@exact_only
def test_branches_that_do_not_reach_the_loss_are_seen() -> None:
    class Branches(Hand):
        def forward(self, x: Tensor) -> Tensor:
            gelu(self.first(x))
            return super().forward(x)

    nodes = made(Branches(), torch.ones(1, 2))
    assert [n.fqn for n in nodes if n.name == "GeluBackward0"] == [""]
    last = next(n for n in nodes if n.name == "GeluBackward0")
    assert [n.name for n in nodes if n.id in last.next] == ["AddmmBackward0"]


def test_both_ways_to_a_parameters_node_lead_to_the_same() -> None:
    leaf = torch.ones(2, requires_grad=True)
    found = gradient_accumulator(leaf)
    assert found.name() == "torch::autograd::AccumulateGrad"
    assert by_expansion(leaf) is found
    with torch.no_grad():
        assert by_expansion(leaf) is found
    used = leaf * 2
    assert used.grad_fn.next_functions[0][0] is found


def test_walk_yields_each_node_once_and_nothing_beyond_what_is_not_wanted() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * x
    z = (y + y).sum()
    names = [node.name().rpartition("::")[2] for node in walk([z.grad_fn, z.grad_fn])]
    assert names == ["SumBackward0", "AddBackward0", "MulBackward0", "AccumulateGrad"]
    stopped = [node.name() for node in walk([z.grad_fn], lambda node: node.name() != "MulBackward0")]
    assert stopped == ["SumBackward0", "AddBackward0"]


def graph_of(value: Tensor) -> Iterator[Any]:
    assert value.grad_fn is not None
    return walk([value.grad_fn])


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_on_a_graph_that_outlives_the_session(way: str, fails: bool) -> None:
    model, seen = Mixed(), []

    def fail(event: Any) -> None:
        seen.append(event.name)

    with untouched(model):
        try:
            with HookSession(model) as session:
                session.on(HookKind.NODE_PRE, fail)
                session.on(HookKind.NODE, fail)
                session.on(HookKind.ENGINE_CALLBACK, fail)
                value = model(torch.ones(2, 4)).sum()
                session.backward_begins([value])
                if fails:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        assert all(not node.metadata for node in graph_of(value))
        value.backward()
        model.zero_grad()
    assert seen == []


def test_no_node_is_held() -> None:
    """A graph that the caller lets go of is freed, with what it saved, while the session goes on."""
    model, freed = Hand(), []
    with HookSession(model) as session:
        session.on(HookKind.NODE, lambda event: None)

        def pack(tensor: Tensor) -> Any:
            class Told:
                def __del__(self) -> None:
                    freed.append(1)

            return Told()

        with graph.saved_tensors_hooks(pack, lambda told: told):
            value = model(torch.ones(1, 2)).sum()
        assert not freed
        del value
        assert freed


def test_the_engines_callback_comes_once_per_pass_and_last() -> None:
    model, seen = Hand(), []
    with HookSession(model) as session:
        for kind in (HookKind.NODE, HookKind.POST_ACCUMULATE_GRAD, HookKind.ENGINE_CALLBACK):
            session.on(kind, lambda event: seen.append(str(event.kind)))
        for number in range(2):
            value = model(torch.ones(1, 2)).sum()
            session.backward_begins([value])
            value.backward()
            assert seen.count("engine_callback") == number + 1 and seen[-1] == "engine_callback"


def test_a_compiled_model_has_the_node_that_runs_not_those_of_tracing() -> None:
    torch.manual_seed(0)
    model = torch.compile(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), backend="aot_eager")
    report = hookcli.capture(model, torch.ones(2, 3), ["graph"])[0]
    torch._dynamo.reset()
    fired = {row["node"] for row in report.rows if row["fired"]}
    assert "AccumulateGrad" in fired and all(row["fired"] for row in report.rows)
