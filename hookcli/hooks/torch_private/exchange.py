"""Replaces functions of PyTorch while sessions run, where PyTorch has no hook."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from threading import RLock
from types import ClassMethodDescriptorType
from typing import Any

from torch.utils.data import SequentialSampler, WeightedRandomSampler

from hookcli.hooks.importlib_bootstrap import call_of_class, latest
from hookcli.tensors.torch_private import private

Function = Callable[..., object]
Wrapper = Callable[[Callable[..., Any]], Function]


class _Exchanged:
    """A function that takes the place of `owner.name`, and applies the wrappers that are on when it is called.

    Sessions in two threads may begin and end in any order, so that a wrapper is taken out from between others. Of a
    class method, the wrappers get the class as the first argument.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        held = vars(owner).get(name)
        of_class = isinstance(held, (classmethod, ClassMethodDescriptorType))
        self._held = held if of_class else getattr(owner, name)
        self.original: Function = partial(call_of_class, self._held) if of_class else self._held
        self._wrappers: list[Wrapper] = []
        self._wrapped = self.original
        function = wraps(getattr(owner, name))(latest(self, "_wrapped"))
        self._placed = classmethod(function) if of_class else function
        setattr(owner, name, self._placed)

    @property
    def in_place(self) -> bool:
        """False if someone else has replaced or wrapped the function since."""
        return vars(self.owner).get(self.name) is self._placed

    def restore(self) -> None:
        """Put the function back, unless someone else has replaced or wrapped it since."""
        if self.in_place:
            setattr(self.owner, self.name, self._held)

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


_exchanged: dict[tuple[object, str], _Exchanged] = {}
_lock = RLock()  # a signal's handler may come back to it in the same thread
if hasattr(os, "register_at_fork"):  # a child, in which no other thread lives, must be able to end its sessions
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@contextmanager
def replaced(owner: object, name: str, wrapper: Wrapper, lost: str) -> Iterator[None]:
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
                ours.restore()


NO_WAITING = "the time spent waiting for data is not known"

DataLoaderIterator: type = private("torch.utils.data.dataloader", "_BaseDataLoaderIter", object, NO_WAITING)
"""The base class of a DataLoader's iterators, whose `__next__` waits for the next batch."""


def batches_yielded(iterator: object) -> int:
    """The number of batches that a DataLoader's iterator has yielded; 0 in a PyTorch that does not count them."""
    return int(getattr(iterator, "_num_yielded", 0))


def takes_in_order(iterator: object) -> bool:
    """True if a DataLoader's iterator takes the items of its dataset one after another, and does not shuffle."""
    sampler = getattr(iterator, "_index_sampler", None)
    return type(getattr(sampler, "sampler", sampler)) is SequentialSampler


def sampler_weights(iterator: object) -> tuple[int, int]:
    """The number of weights of a DataLoader's WeightedRandomSampler, and that of all samples; (0, 0) without one."""
    sampler = getattr(getattr(iterator, "_index_sampler", None), "sampler", None)
    if type(sampler) is not WeightedRandomSampler:
        return 0, 0
    with suppress(TypeError, NotImplementedError):  # a dataset without a length
        return len(sampler.weights), len(iterator._dataset)  # type: ignore[attr-defined]
    return 0, 0


def loader_workers(iterator: object) -> int:
    """The number of processes that make the batches of a DataLoader's iterator; 0: the one that takes them."""
    return int(getattr(iterator, "_num_workers", 0))


def batches_in_all(iterator: object) -> int:
    """The number of batches that a DataLoader's iterator yields, if PyTorch's own samplers tell; else 0.

    Samplers of the program's own are not asked, whose length may depend on random numbers.
    """
    sampler = getattr(iterator, "_index_sampler", None)
    asked = [getattr(type(one), "__len__", None) for one in (sampler, getattr(sampler, "sampler", sampler))]
    if not all(str(getattr(length, "__module__", "")).startswith("torch.utils.data.") for length in asked):
        return 0
    with suppress(TypeError, NotImplementedError):  # a dataset without a length
        return len(sampler)  # type: ignore[arg-type]
    return 0
