"""Replaces functions of PyTorch while sessions run, where PyTorch has no hook."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import RLock
from typing import Any

from hookcli.tensors.torch_private import private

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Exchanged:
    """A function that takes the place of `owner.name`, and applies the wrappers that are on when it is called.

    Sessions in two threads may begin and end in any order, so that a wrapper is taken out from between others.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.original: Callable[..., Any] = getattr(owner, name)
        self._wrappers: list[Wrapper] = []
        self._wrapped = self.original
        self.function = wraps(self.original)(lambda *args, **kwargs: self._wrapped(*args, **kwargs))
        setattr(owner, name, self.function)

    @property
    def in_place(self) -> bool:
        """False if someone else has replaced or wrapped the function since."""
        return getattr(self.owner, self.name) is self.function

    def add(self, wrapper: Wrapper) -> None:
        """Apply this wrapper around the others."""
        self._wrappers.append(wrapper)
        self._wrapped = wrapper(self._wrapped)

    def remove(self, wrapper: Wrapper) -> bool:
        """Apply this wrapper no longer, and return True if none is left."""
        self._wrappers.remove(wrapper)
        wrapped = self.original
        for left in self._wrappers:
            wrapped = left(wrapped)
        self._wrapped = wrapped
        return not self._wrappers


_exchanged: dict[tuple[Any, str], _Exchanged] = {}
_lock = RLock()  # a signal's handler may come back to it in the same thread
if hasattr(os, "register_at_fork"):  # a child, in which no other thread lives, must be able to end its sessions
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextmanager
def replaced(owner: Any, name: str, wrapper: Wrapper, lost: str) -> Iterator[None]:
    """Replace `owner.name` by `wrapper(owner.name)` in this block, in all threads.

    Blocks may end in another order than they began in. If PyTorch has no such function, nothing is replaced, and `lost`
    becomes a note.
    """
    if private(owner, name, None, lost) is None:
        yield
        return
    key = (owner, name)
    with _lock:
        ours = _exchanged.get(key)
        if ours is None or not ours.in_place:
            ours = _exchanged[key] = _Exchanged(owner, name)
        ours.add(wrapper)
    try:
        yield
    finally:
        with _lock:
            if ours.remove(wrapper):
                if _exchanged.get(key) is ours:
                    del _exchanged[key]
                if ours.in_place:  # what someone else has wrapped since stays
                    setattr(owner, name, ours.original)
