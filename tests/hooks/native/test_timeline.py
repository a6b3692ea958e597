"""The timeline of C++ hooks: the right figures and times, for the right nodes, in walk order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import EACH, by_name, exact, loss_of, walk
from support import Hand, assert_stats, float64_stats
from torch import Tensor

from hookcli.errors import UsageError
from hookcli.hooks.native.timeline import Timeline
from hookcli.table import TensorStats


@pytest.fixture(params=EACH)
def loss(request: pytest.FixtureRequest) -> Tensor:
    return loss_of(request.param)[1]


def test_three_layers_by_hand() -> None:
    """y = 3 * sum(relu(2x - 1)) at x = (1, 1/4): the relu passes the first unit alone."""
    model, x = Hand(), torch.tensor([[1.0, 0.25]], requires_grad=True)
    y = model(x)
    with Timeline([y]) as timeline:
        y.backward()
    last, relu, first = (by_name(timeline, name) for name in ("MmBackward0", "ReluBackward0", "AddmmBackward0"))
    exact(last.grad_outputs[0], torch.tensor([[1.0]]))
    exact(last.grad_inputs[0], torch.tensor([[3.0, 3.0]]))
    exact(last.grad_inputs[1], torch.tensor([[1.0], [0.0]]))
    exact(relu.grad_outputs[0], torch.tensor([[3.0, 3.0]]))
    exact(relu.grad_inputs[0], torch.tensor([[3.0, 0.0]]))
    bias, data, weight = first.grad_inputs
    exact(bias, torch.tensor([3.0, 0.0]))
    exact(data, torch.tensor([[6.0, 0.0]]))
    exact(weight, torch.tensor([[3.0, 0.0], [0.75, 0.0]]))
    assert (last.order, last.fired, timeline._timeline.passes()[0]) == (0, 1, 1)
    assert bias and bias.stats == TensorStats(2, 1.5, pytest.approx(4.5**0.5), 0.0, 3.0, 3.0, zeros=1)


def test_both_languages_walk_alike(loss: Tensor) -> None:
    with Timeline([loss]) as timeline:
        assert [node.name for node in timeline.nodes()] == [node.name() for node in walk(loss)]


def test_several_roots_and_a_leaf_as_root() -> None:
    w = torch.ones(2, requires_grad=True)
    a, b = w.exp(), (w * 2).sin()
    with Timeline([b, a, w]) as timeline:
        assert [node.name for node in timeline.nodes()] == [node.name() for node in walk(b, a, w)]
        torch.autograd.backward([b, a, w], [torch.ones(2)] * 3)
    assert [node.fired for node in timeline.nodes()] == [1] * 4
    exact(timeline.nodes()[2].grad_outputs[0], 2 * (2 * w.detach()).cos() + w.detach().exp() + 1)


def test_gradients_are_those_that_python_hooks_see(loss: Tensor) -> None:
    seen: dict[int, tuple[Any, Any]] = {}
    order: list[int] = []

    def hook(place: int) -> Callable[[Any, Any], None]:
        def see(grad_inputs: Any, grad_outputs: Any) -> None:
            order.append(place)
            seen[place] = tuple(
                tuple(g if g is None else g.clone() for g in some) for some in (grad_inputs, grad_outputs)
            )

        return see

    nodes = walk(loss)
    for place, node in enumerate(nodes):
        node.register_hook(hook(place))
    with Timeline([loss]) as timeline:
        loss.backward()
    records = timeline.nodes()
    assert sorted(seen) == list(range(len(records))) and len(records) >= 8
    assert sorted(order, key=lambda place: records[place].order or 0) == order
    for place, (grad_inputs, grad_outputs) in seen.items():
        for found, expected in ((records[place].grad_inputs, grad_inputs), (records[place].grad_outputs, grad_outputs)):
            assert len(found) == len(expected)
            for record, tensor in zip(found, expected, strict=True):
                assert (record is None) == (tensor is None)
                if record is not None:
                    assert record.shape == tuple(tensor.shape)
                    assert_stats(record.stats, float64_stats(tensor))


def test_a_retained_graph_fires_again() -> None:
    x = torch.ones(3, requires_grad=True)
    y = (x * 2).sum()
    with Timeline([y], [x]) as timeline:
        y.backward(retain_graph=True)
        first = timeline.finished_ns
        y.backward(torch.tensor(5.0))
    assert [node.fired for node in timeline.nodes()] == [2, 2, 2] and timeline._timeline.passes()[0] == 2
    assert first and timeline.finished_ns and timeline.finished_ns > first
    exact(by_name(timeline, "SumBackward0").grad_outputs[0], torch.tensor(5.0))  # of the last firing
    exact(timeline.leaf_gradients()[0].gradient, torch.full((3,), 10.0))
    assert [node.order for node in timeline.nodes()] == [0, 1, 2]


def test_what_never_fired_says_so() -> None:
    x = torch.ones(3, requires_grad=True)
    a, b = x.exp(), x.sin().cos()
    with Timeline([a, b], [x]) as timeline:
        a.sum().backward()
    records = {node.name: node for node in timeline.nodes()}
    sleeping = records["SinBackward0"]
    assert (sleeping.order, sleeping.fired, sleeping.began_ns, sleeping.ended_ns) == (None, 0, None, None)
    assert (sleeping.grad_outputs, sleeping.grad_inputs) == ((), ())
    assert records["ExpBackward0"].fired == 1 and records["torch::autograd::AccumulateGrad"].order == 1


def test_undefined_gradients_are_none() -> None:
    x = torch.ones(3, requires_grad=True)
    a, _ = torch.ones(2, 3, requires_grad=True).unbind()
    y = (a * x.detach()).sum()
    with Timeline([y]) as timeline:
        y.backward()
    assert by_name(timeline, "UnbindBackward0").grad_outputs[1] is None
    assert by_name(timeline, "MulBackward0").grad_inputs[1] is None


def test_times_are_in_order_and_on_pythons_clock() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp().sin().sum()
    started = time.perf_counter_ns()
    with Timeline([y], [x]) as timeline:
        y.backward()
    ended = time.perf_counter_ns()
    records = sorted(timeline.nodes(), key=lambda node: node.order or 0)
    (leaf,) = timeline.leaf_gradients()
    times = [t for node in records[:-1] for t in (node.began_ns, node.ended_ns)] + [leaf.at_ns, timeline.finished_ns]
    assert [started, *times, ended] == sorted([started, *times, ended], key=lambda t: t or 0)
    assert records[-1].name.endswith("AccumulateGrad") and (leaf.at_ns or 0) < (records[-1].began_ns or 0)


def test_a_pass_ends_after_everything_that_it_accumulated() -> None:
    x = torch.ones(3, requires_grad=True)
    set_at: list[int] = []
    x.register_post_accumulate_grad_hook(lambda leaf: set_at.append(time.perf_counter_ns()))
    y = x.exp().sum()
    with Timeline([y]) as timeline:
        assert timeline.finished_ns is None
        y.backward()
    assert timeline.finished_ns and timeline.finished_ns > set_at[0]


def test_a_gradient_that_is_handed_on_is_reduced_once() -> None:
    x = torch.ones(4, 6, requires_grad=True)
    y = x.exp().t().reshape(24).sin()
    with Timeline([y], [x]) as timeline:
        y.backward(torch.ones(24))
    transposed = by_name(timeline, "TBackward0").grad_inputs[0]
    assert transposed and transposed.shape == (4, 6)
    seen = sum(len(node.grad_inputs) + len(node.grad_outputs) for node in timeline.nodes()) + 1
    assert seen == 12  # five nodes' in and out, the accumulator's in, the leaf's
    assert timeline._timeline.passes()[3] == 3  # into sin; out of it and, as views, down to exp; out of exp


def test_a_gradient_that_is_changed_in_place_is_reduced_again() -> None:
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad.mul_(2)

    x = torch.ones(3, requires_grad=True)
    y = Doubles.apply(x * 3).exp()
    with Timeline([y], [x]) as timeline:
        y.backward(torch.ones(3))
    doubles = by_name(timeline, "DoublesBackward")
    assert doubles.grad_outputs[0] and doubles.grad_outputs[0].stats and doubles.grad_inputs[0]
    assert doubles.grad_inputs[0].stats
    assert doubles.grad_inputs[0].stats.mean == pytest.approx(2 * doubles.grad_outputs[0].stats.mean)
    exact(timeline.leaf_gradients()[0].gradient, x.grad)


def test_meta_has_shapes_and_no_values() -> None:
    x = torch.ones(3, 2, device="meta", requires_grad=True)
    y = x.exp().sum()
    with Timeline([y]) as timeline:
        y.backward()
    (record,) = by_name(timeline, "ExpBackward0").grad_inputs
    assert record and record.stats and (record.shape, record.device, record.stats.numel) == ((3, 2), "meta", 6)
    assert record.stats.mean != record.stats.mean


def test_tensor_subclasses_are_said_to_be_unmeasured() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(3, requires_grad=True)
        y = x.exp().sum()
        with Timeline([y]) as timeline:
            y.backward()
    (record,) = by_name(timeline, "ExpBackward0").grad_inputs
    assert record and record.stats is None and "subclass" in record.unmeasured


def test_checkpoints_run_passes_within_a_pass() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(3, requires_grad=True)
    y = checkpoint(lambda x: x.exp().sin(), x * 1, use_reentrant=True).sum()
    with Timeline([y], [x]) as timeline:
        y.backward()
    assert timeline._timeline.passes()[0] == 1 and by_name(timeline, "CheckpointFunctionBackward").fired == 1
    exact(timeline.leaf_gradients()[0].gradient, x.grad)


@pytest.mark.parametrize("what", ["root", "leaf"])
def test_what_requires_no_gradient_is_refused(what: str) -> None:
    y, x = torch.ones(1, requires_grad=True).exp(), torch.ones(1)
    with pytest.raises(UsageError, match=f"{what} 0 of the timeline requires no gradient"):
        Timeline([x] if what == "root" else [y], [x])
