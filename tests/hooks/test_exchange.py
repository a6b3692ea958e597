"""Functions of PyTorch are exchanged by sessions that begin and end in any order, in any thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hookcli.hooks.observing_mode import FunctionCalls
from hookcli.hooks.torch_private import exchange, overrides
from hookcli.hooks.torch_private.exchange import replaced


class Owner(SimpleNamespace):
    """Holds a function; hashable, as modules and classes are."""

    __hash__ = object.__hash__


def adding(letter: str, original: Callable[..., str]) -> Callable[..., str]:
    return lambda *args: original(*args) + letter


def held(owner: Owner, letter: str) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(replaced(owner, "f", partial(adding, letter), ""))
    return stack


@pytest.mark.parametrize("order", [*permutations("abc")])
def test_each_wrapper_counts_until_its_block_ends(order: tuple[str, ...]) -> None:
    owner = Owner(f=lambda x: x)
    original = owner.f
    blocks = {letter: held(owner, letter) for letter in "abc"}
    assert owner.f(".") == ".abc"
    for letter in order:
        blocks.pop(letter).close()
        assert owner.f(".") == "." + "".join(sorted(blocks))
    assert owner.f is original and not exchange._exchanged


def test_a_wrapper_of_someone_else_stays_and_ours_end() -> None:
    owner = Owner(f=lambda x: x)
    original = owner.f
    ours = held(owner, "a")
    below, owner.f = owner.f, lambda x: below(x) + "!"
    foreign = owner.f
    again = held(owner, "b")
    assert owner.f(".") == ".a!b"
    ours.close()
    assert owner.f(".") == ".!b"
    again.close()
    assert owner.f is foreign and owner.f(".") == ".!"
    owner.f = below
    with held(owner, "c"):
        assert owner.f(".") == ".c"
    assert owner.f(".") == "." and owner.f.__wrapped__ is original


def test_two_threads_enter_and_leave_in_the_order_of_lockstep() -> None:
    """Each thread's own mode sees its calls alone, also once the other's is gone, and attention stays fused."""
    before = torch.overrides.has_torch_function
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.ones(2, 1, 8)
    logs: dict[str, list[str]] = {}
    turns = {name: threading.Semaphore(0) for name in "ab"}
    done = threading.Semaphore(0)

    def side(name: str) -> None:
        calls = FunctionCalls(lambda func: True)
        turns[name].acquire()
        with calls:
            done.release()
            turns[name].acquire()
            with torch.no_grad():
                attention(x, x, x)
        logs[name] = [getattr(s.function, "__name__", "") for s in calls.signatures]
        done.release()

    threads = [threading.Thread(target=side, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for name in "abab":
        turns[name].release()
        assert done.acquire(timeout=120)
    for thread in threads:
        thread.join()
    assert logs["a"] == logs["b"] and "_native_multi_head_attention" in logs["b"]
    assert torch.overrides.has_torch_function is before and not exchange._exchanged


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes to fork")
@pytest.mark.sweep
def test_a_fork_can_end_what_its_parent_began_while_a_thread_is_about_it() -> None:
    owner = Owner(f=lambda x: x)
    stop = threading.Event()

    def busy() -> None:
        other: Any = Owner(f=lambda x: x)
        while not stop.is_set():
            held(other, "b").close()

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        with held(owner, "a") as block:
            for _ in range(5):
                child = os.fork()
                if not child:
                    block.close()
                    os._exit(owner.f(".") != ".")
                assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_a_mode_ends_where_pytorch_has_no_names_to_order_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_pop", "_push"):
        monkeypatch.setattr(overrides, name, None)
    before = torch._C._len_torch_function_stack()
    with FunctionCalls(lambda function: True):
        assert torch._C._len_torch_function_stack() == before + 1
    assert torch._C._len_torch_function_stack() == before
