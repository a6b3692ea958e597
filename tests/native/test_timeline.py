"""C++ hooks on an autograd graph: the right figures, for the right nodes, and nothing changed or left behind."""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torchvision
from support import Hand, assert_stats, equal, float64_stats
from torch import Tensor, nn

from hookcli.errors import UsageError
from hookcli.native import GradRecord, NodeRecord, Timeline
from hookcli.report import TensorStats


class Cube(torch.autograd.Function):
    """A node in Python, whose backward needs the lock."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise KeyError("lost")


def walk(*roots: Tensor) -> list[Any]:
    """The nodes below the roots, breadth-first, as Python sees them."""
    first = [torch.autograd.graph.get_gradient_edge(root).node for root in roots]
    found = list(dict.fromkeys(first))
    for node in found:
        found.extend(n for n, _ in node.next_functions if n is not None and n not in found)
    return found


def vision_transformer() -> nn.Module:
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 32, num_classes=5)
    nn.init.normal_(model.heads.head.weight)  # torchvision's zeros would make all gradients zero
    return model


def custom() -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return Cube.apply(y).relu_() + y

    return Model()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: torchvision.models.resnet18(num_classes=10),
    "vision transformer": vision_transformer,
    "custom function": custom,
}


@pytest.fixture(params=MODELS)
def loss(request: pytest.FixtureRequest) -> Tensor:
    return loss_of(request.param)[1]


def loss_of(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = MODELS[name]()
    size = 64 if name == "resnet18" else 32
    return model, (model(torch.randn(2, 3, size, size)) ** 2).sum()


def hooks_below(*roots: Tensor) -> int:
    return int(torch.ops.hookcli_native.hooks_below(list(roots)))


def by_name(timeline: Timeline, name: str) -> NodeRecord:
    (found,) = (node for node in timeline.nodes() if node.name == name)
    return found


def exact(record: GradRecord | None, tensor: Tensor) -> None:
    assert record is not None and record.shape == tuple(tensor.shape) and record.dtype == "float32"
    assert_stats(record.stats, float64_stats(tensor), 1e-7)


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
    assert (last.order, last.fired, timeline.passes) == (0, 1, 1)
    assert bias and bias.stats == TensorStats(2, 1.5, pytest.approx(4.5**0.5), 0.0, 3.0, 3.0, zeros=1)


def test_both_languages_walk_alike(loss: Tensor) -> None:
    with Timeline([loss]) as timeline:
        assert timeline.names == [node.name() for node in walk(loss)]


def test_several_roots_and_a_leaf_as_root() -> None:
    w = torch.ones(2, requires_grad=True)
    a, b = w.exp(), (w * 2).sin()
    with Timeline([b, a, w]) as timeline:
        assert timeline.names == [node.name() for node in walk(b, a, w)]
        torch.autograd.backward([b, a, w], [torch.ones(2)] * 3)
    assert [node.fired for node in timeline.nodes()] == [1] * 4
    exact(timeline.nodes()[2].grad_outputs[0], 2 * (2 * w.detach()).cos() + w.detach().exp() + 1)


def test_gradients_are_those_that_python_hooks_see(loss: Tensor) -> None:
    seen: dict[int, tuple[Any, Any]] = {}
    order: list[int] = []

    def hook(place: int) -> Callable[[Any, Any], None]:
        def see(grad_inputs: Any, grad_outputs: Any) -> None:
            order.append(place)
            seen[place] = tuple(tuple(g if g is None else g.clone() for g in some) for some in (grad_inputs, grad_outputs))

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


@pytest.mark.parametrize("name", MODELS)
def test_gradients_stay_bit_for_bit(name: str) -> None:
    model, loss = loss_of(name)
    loss.backward()
    hooked, loss = loss_of(name)
    with Timeline([loss], list(hooked.parameters())) as timeline:
        loss.backward()
    assert timeline.passes == 1
    assert equal([p.grad for p in hooked.parameters()], [p.grad for p in model.parameters()])


def test_gradients_of_gradients_stay_bit_for_bit() -> None:
    def twice(hook: bool) -> Tensor:
        x = torch.linspace(-1, 1, 7, requires_grad=True)
        y = Cube.apply(x).sin().sum()
        with Timeline([y], [x]) if hook else torch.enable_grad():
            (first,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    assert equal(twice(True), twice(False))


def test_hooks_are_gone_afterwards_and_others_stay() -> None:
    x = torch.ones(3, requires_grad=True)
    y = Cube.apply(x).sum()
    calls: list[str] = []
    y.grad_fn.register_prehook(lambda grads: calls.append("theirs"))
    before = hooks_below(y)
    with Timeline([y], [x]) as timeline:
        assert hooks_below(y) == before + 2 * len(timeline.names)
        with Timeline([y]):
            assert hooks_below(y) == before + 4 * len(timeline.names)
        y.backward(retain_graph=True)
    assert hooks_below(y) == before == 1
    records = timeline.nodes()
    y.backward()
    assert timeline.nodes() == records and timeline.passes == 1 and calls == ["theirs", "theirs"]
    assert [leaf.fired for leaf in timeline.leaf_gradients()] == [1]


def test_a_retained_graph_fires_again() -> None:
    x = torch.ones(3, requires_grad=True)
    y = (x * 2).sum()
    with Timeline([y], [x]) as timeline:
        y.backward(retain_graph=True)
        first = timeline.finished_ns
        y.backward(torch.tensor(5.0))
    assert [node.fired for node in timeline.nodes()] == [2, 2, 2] and timeline.passes == 2
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
    a, b = torch.ones(2, 3, requires_grad=True).unbind()
    y = (a * x.detach()).sum()
    with Timeline([y]) as timeline:
        y.backward()
    assert by_name(timeline, "UnbindBackward0").grad_outputs[1] is None
    assert by_name(timeline, "MulBackward0").grad_inputs[1] is None


def test_a_backward_that_raises() -> None:
    x = torch.ones(3, requires_grad=True)
    y = Fails.apply(x.exp()).sum()
    with pytest.raises(KeyError, match="lost"), Timeline([y], [x]) as timeline:
        y.backward()
    fails = by_name(timeline, "FailsBackward")
    assert fails.fired == 1 and fails.began_ns and fails.ended_ns is None and fails.grad_inputs == ()
    assert by_name(timeline, "SumBackward0").ended_ns and by_name(timeline, "ExpBackward0").fired == 0
    assert timeline.finished_ns is None and timeline.passes == 0 and hooks_below(y) == 0


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


def test_leaf_hooks_in_their_order() -> None:
    a, b, unused = (torch.full((2,), float(i), requires_grad=True) for i in (1, 2, 3))
    y = (a.exp() * b).sum()
    with Timeline([y], [a, b, unused]) as timeline:
        y.backward()
    first, second, none = timeline.leaf_gradients()
    assert (second.order, first.order, none.order) == (0, 1, None) and none.gradient is None and none.fired == 0
    exact(first.gradient, a.grad)
    exact(second.gradient, b.grad)


def test_captures_of_autograd_grad_and_the_tensor_hook_beside_them() -> None:
    x, w = torch.arange(1.0, 4.0, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    h = x * w
    y = h.exp().sum()
    with Timeline([y], [x, h]) as timeline:
        found = torch.autograd.grad(y, [h, w, x])
    captures = {capture.input: capture for capture in timeline.captures()}
    assert sorted(captures) == [0, 1, 2] and len(timeline.captures()) == 3
    for place, tensor in enumerate(found):
        exact(captures[place].gradient, tensor)
    accumulate = "torch::autograd::AccumulateGrad"
    assert [timeline.names[captures[place].node or 0] for place in range(3)] == ["MulBackward0", accumulate, accumulate]
    assert [captures[place].leaf for place in range(3)] == [1, None, 0]
    beside = captures[2].tensor_hook
    assert beside and beside == timeline.leaf_gradients()[0] and beside.gradient == captures[2].gradient
    assert beside.at_ns and beside.at_ns <= captures[2].at_ns
    assert captures[1].tensor_hook is None
    # The engine stops at what it captures: an accumulator never runs.
    assert all(node.fired == 0 for node in timeline.nodes() if node.name == accumulate)


def test_a_tensor_above_another_input_is_captured_before_its_hooks() -> None:
    """PyTorch's own behaviour: the result of torch.autograd.grad is without what the tensor's hook made of it."""
    x = torch.ones(3, requires_grad=True)
    h = x * 2
    h.register_hook(lambda grad: grad * 10)
    y = h.sum()
    with Timeline([y], [h]) as timeline:
        found, _ = torch.autograd.grad(y, [h, x])
    (capture,) = (c for c in timeline.captures() if c.input == 0)
    exact(capture.gradient, found)
    assert capture.tensor_hook
    exact(capture.tensor_hook.gradient, found * 10)


def test_the_capture_of_a_root_is_seen_where_the_pass_ends_there() -> None:
    x = torch.ones(3, requires_grad=True)
    y = x.exp().sum()
    with Timeline([y], [y]) as timeline:
        torch.autograd.grad(y, [y], retain_graph=True)
        assert [capture.input for capture in timeline.captures()] == [0]
        torch.autograd.grad(y, [y, x])  # captured before any hook of the pass; the tensor hook sees it all the same
        assert [capture.input for capture in timeline.captures()] == [0, 1]
    assert timeline.leaf_gradients()[0].fired == 2


def test_captures_are_of_one_pass_and_not_of_backward() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp().sum()
    with Timeline([y], [x]) as timeline:
        y.backward(retain_graph=True)
        assert timeline.captures() == []
        y.backward(retain_graph=True, inputs=[x])
        assert timeline.captures() == []
        torch.autograd.grad(y, x, retain_graph=True)
        torch.autograd.grad(y, x, retain_graph=True)
        assert len(timeline.captures()) == 2 and timeline.passes == 4
    torch.autograd.grad(y, x)
    assert len(timeline.captures()) == 2


def test_hooks_run_without_pythons_lock(loss: Tensor) -> None:
    with Timeline([loss]) as timeline:
        loss.backward()
    assert timeline.firings_under_gil == 0 and sum(node.fired for node in timeline.nodes()) >= 8


def test_several_threads_at_once() -> None:
    """Passes through graphs that share their leaf and, at its root, one graph that all timelines share."""
    w = torch.ones(1000, requires_grad=True)
    shared = w.exp()
    losses = [(shared * i).sin().sum() for i in range(1, 5)]
    timelines = [Timeline([loss], [w]) for loss in losses]
    threads = [
        threading.Thread(target=lambda loss=loss: [loss.backward(retain_graph=True) for _ in range(25)])
        for loss in losses
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for timeline in timelines:
        timeline.detach()
        records = {node.name: node for node in timeline.nodes()}
        assert records["SinBackward0"].fired == 25 and records["ExpBackward0"].fired == 100
        assert timeline.firings_under_gil == 0 and timeline.passes == 100  # every pass reaches the shared node
    assert hooks_below(*losses) == 0


def test_gradients_do_not_live_on() -> None:
    alive: list[weakref.ref[Tensor]] = []

    class Hands(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.sum()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            made = torch.ones(10)
            alive.append(weakref.ref(made))
            return made

    x = torch.ones(10, requires_grad=True)
    y = Hands.apply(x.exp())
    with Timeline([y]) as timeline:
        y.backward()
        gc.collect()
        assert by_name(timeline, "ExpBackward0").fired == 1
        assert alive[0]() is None


def test_a_graph_dies_with_its_root_inside_the_block() -> None:
    gc.collect()
    h = torch.ones(10, requires_grad=True).clone()
    saved = weakref.ref(h)
    y = (h * h).sum()
    del h
    with Timeline([y]) as timeline:
        assert saved() is not None
        del y
        assert saved() is None
        assert len(timeline.names) == 4


def test_a_gradient_that_is_handed_on_is_reduced_once() -> None:
    x = torch.ones(4, 6, requires_grad=True)
    y = x.exp().t().reshape(24).sin()
    with Timeline([y], [x]) as timeline:
        y.backward(torch.ones(24))
    transposed = by_name(timeline, "TBackward0").grad_inputs[0]
    assert transposed and transposed.shape == (4, 6)
    seen = sum(len(node.grad_inputs) + len(node.grad_outputs) for node in timeline.nodes()) + 1
    assert seen == 12  # five nodes' in and out, the accumulator's in, the leaf's
    assert timeline.reductions == 3  # into sin; out of it and, as views, down to exp; out of exp


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


def test_without_statistics() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    y = x.exp().sum()
    with Timeline([y], statistics=False) as timeline:
        y.backward()
    assert by_name(timeline, "ExpBackward0").grad_inputs == (GradRecord((3, 2), "float32", "cpu", None),)
    assert timeline.reductions == 0


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
    assert timeline.passes == 1 and by_name(timeline, "CheckpointFunctionBackward").fired == 1
    exact(timeline.leaf_gradients()[0].gradient, x.grad)


@pytest.mark.parametrize("what", ["root", "leaf"])
def test_what_requires_no_gradient_is_refused(what: str) -> None:
    y, x = torch.ones(1, requires_grad=True).exp(), torch.ones(1)
    with pytest.raises(UsageError, match=f"{what} 0 of the timeline requires no gradient"):
        Timeline([x] if what == "root" else [y], [x])


def test_a_model_is_left_as_it_was() -> None:
    model, _ = loss_of("custom function")
    untouched = copy.deepcopy(model)
    loss = (model(torch.ones(1, 3, 8, 8)) ** 2).sum()
    with Timeline([loss], list(model.parameters())):
        loss.backward()
    assert equal(list(model.state_dict().values()), list(untouched.state_dict().values()))
    assert [p._backward_hooks for p in model.parameters()] == [None, None]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    yield
    assert torch.is_grad_enabled()
