"""Listeners for new nodes of autograd share one hook of PyTorch in each thread."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
import torch
from torch.autograd import graph
from torch.autograd.graph import Node

from hookcli.hooks.node_hooks import new_nodes

pytestmark = pytest.mark.skipif(not hasattr(graph, "node_creation_hook"), reason="came with torch 2.14")


def test_blocks_end_in_any_order() -> None:
    first: list[Node] = []
    second: list[Node] = []
    x = torch.ones(2, requires_grad=True)
    one, other = ExitStack(), ExitStack()
    one.enter_context(new_nodes(first.append))
    other.enter_context(new_nodes(second.append))
    _ = x * 2  # its node, and the leaf's
    one.close()
    _ = x.exp()
    other.close()
    _ = x.sin()
    assert [node.name() for node in first] == [node.name() for node in second[: len(first)]]
    assert [node.name() for node in first][-1] == "MulBackward0"
    assert [node.name() for node in second][-1] == "ExpBackward0"


def test_a_block_may_end_in_another_thread() -> None:
    """A hook of the program's in that thread stays, and nothing is heard from then on."""
    heard: list[Node] = []
    programs: list[Node] = []
    x = torch.ones(2, requires_grad=True)
    block, ended, done = ExitStack(), threading.Event(), threading.Event()

    def work() -> None:
        block.enter_context(new_nodes(heard.append))
        _ = x * 2
        done.set()
        assert ended.wait(60)
        _ = x.exp()
        with new_nodes(programs.append):  # the thread's later blocks work
            _ = x.sin()
        _ = x.cos()

    thread = threading.Thread(target=work)
    thread.start()
    assert done.wait(60)
    with graph.node_creation_hook(programs.append):
        block.close()
        _ = x.tan()
        ended.set()
        thread.join()
    assert [node.name() for node in heard][-1] == "MulBackward0"
    names = [node.name() for node in programs]
    assert "TanBackward0" in names and "SinBackward0" in names
    assert "ExpBackward0" not in names and "CosBackward0" not in names
