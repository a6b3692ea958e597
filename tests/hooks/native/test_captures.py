"""What torch.autograd.grad captures, and tensor hooks: in C++, beside each other."""

from __future__ import annotations

import pytest
import torch
from graphs import exact

from hookcli.hooks.native.timeline import Timeline


@pytest.mark.sweep
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
    names = [timeline.nodes()[captures[place].node or 0].name for place in range(3)]
    assert names == ["MulBackward0", accumulate, accumulate]
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
        assert len(timeline.captures()) == 2 and timeline._timeline.passes()[0] == 4
    torch.autograd.grad(y, x)
    assert len(timeline.captures()) == 2


def test_leaf_hooks_in_their_order() -> None:
    a, b, unused = (torch.full((2,), float(i), requires_grad=True) for i in (1, 2, 3))
    y = (a.exp() * b).sum()
    with Timeline([y], [a, b, unused]) as timeline:
        y.backward()
    first, second, none = timeline.leaf_gradients()
    assert (second.order, first.order, none.order) == (0, 1, None) and none.gradient is None and none.fired == 0
    exact(first.gradient, a.grad)
    exact(second.gradient, b.grad)
