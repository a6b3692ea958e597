"""C++ hooks change nothing, keep nothing alive, need no lock, and are gone afterwards."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from graphs import EACH, Cube, Fails, by_name, hooks_below, loss_of
from support import equal
from torch import Tensor

from hookcli.hooks.native.timeline import Timeline


@pytest.mark.parametrize("name", EACH)
def test_gradients_stay_bit_for_bit(name: str) -> None:
    model, loss = loss_of(name)
    loss.backward()
    hooked, loss = loss_of(name)
    with Timeline([loss], list(hooked.parameters())) as timeline:
        loss.backward()
    assert timeline._timeline.passes()[0] == 1
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
        assert hooks_below(y) == before + 2 * len(timeline.nodes())
        with Timeline([y]):
            assert hooks_below(y) == before + 4 * len(timeline.nodes())
        y.backward(retain_graph=True)
    assert hooks_below(y) == before == 1
    records = timeline.nodes()
    y.backward()
    assert str(timeline.nodes()) == str(records)  # since Python 3.13 dataclasses with NaN differ
    assert timeline._timeline.passes()[0] == 1 and calls == ["theirs", "theirs"]
    assert [leaf.fired for leaf in timeline.leaf_gradients()] == [1]


def test_a_backward_that_raises() -> None:
    x = torch.ones(3, requires_grad=True)
    y = Fails.apply(x.exp()).sum()
    with pytest.raises(KeyError, match="lost"), Timeline([y], [x]) as timeline:
        y.backward()
    fails = by_name(timeline, "FailsBackward")
    assert fails.fired == 1 and fails.began_ns and fails.ended_ns is None and fails.grad_inputs == ()
    assert by_name(timeline, "SumBackward0").ended_ns and by_name(timeline, "ExpBackward0").fired == 0
    assert timeline.finished_ns is None and timeline._timeline.passes()[0] == 0 and hooks_below(y) == 0


@pytest.mark.parametrize("name", EACH)
def test_hooks_run_without_pythons_lock(name: str) -> None:
    _, loss = loss_of(name)
    with Timeline([loss]) as timeline:
        loss.backward()
    assert timeline._timeline.passes()[2] == 0 and sum(node.fired for node in timeline.nodes()) >= 8


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
        assert timeline._timeline.passes()[2] == 0
        assert timeline._timeline.passes()[0] == 100  # every pass reaches the shared node
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
        assert len(timeline.nodes()) == 4


def test_a_model_is_left_as_it_was() -> None:
    model, _ = loss_of("custom function")
    untouched = copy.deepcopy(model)
    loss = (model(torch.ones(1, 3, 8, 8)) ** 2).sum()
    with Timeline([loss], list(model.parameters())):
        loss.backward()
    assert equal(list(model.state_dict().values()), list(untouched.state_dict().values()))
    assert [p._backward_hooks for p in model.parameters()] == [None, None]
