"""Dictionaries by the identity of their keys, which they do not keep alive; one forgets tensors that change."""

from __future__ import annotations

import cmath
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor

from hookcli.tensors import tree
from hookcli.tensors.chunks import is_gapless
from hookcli.tensors.torch_private import version

K = TypeVar("K")
V = TypeVar("V")


class WeakIds(Generic[K, V]):
    """A dictionary that drops an entry when its key dies, in a callback written in C.

    Python drops an exception that is raised in such a callback, also the KeyboardInterrupt of a Ctrl-C that comes while
    it runs, and `WeakKeyDictionary` and `WeakTensorKeyDictionary` have callbacks in Python.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[K], V]] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[id(key)] = ref(key, partial(self._entries.pop, id(key))), value

    def __delitem__(self, key: K) -> None:
        del self._entries[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._entries

    def __bool__(self) -> bool:
        return bool(self._entries)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(id(key))
        return None if entry is None else entry[1]

    def items(self) -> Iterator[tuple[K, V]]:
        """The keys that are alive, with their values; entries may come and go meanwhile."""
        for reference, value in list(self._entries.values()):
            if (key := reference()) is not None:
                yield key, value


T = TypeVar("T")
# Up to which size a tensor is summed to see whether it changed, and how many elements of a larger one are looked at.
_SMALL, _GLIMPSED = 1 << 16, 251


class Unchanged(Generic[T]):
    """Results by tensor, each for as long as its tensor lives and is unchanged.

    In-place operations increase a tensor's version. Writing through `.data` or a NumPy view does not, so a glimpse of
    the values is compared as well. With `views`, tensors of the same elements have one result, as a tensor and its
    transpose have.
    """

    def __init__(self, *, views: bool = False) -> None:
        self._seen: WeakIds[Tensor, tuple[object, T]] = WeakIds()
        self._views = views
        self._elements: WeakIds[torch.UntypedStorage, dict[Hashable, list[tuple[object, T]]]] = WeakIds()

    def get(self, tensor: Tensor, make: Callable[[Tensor], T]) -> T:
        """The result for a tensor: the known one if nothing has changed, else what `make` returns."""
        glimpsed = glimpse(tensor)
        if glimpsed is None:
            return make(tensor)
        state = version(tensor), glimpsed
        result = self._seen.get(tensor)
        if result is None or result[0] != state:
            shared: list[tuple[object, T]] = []  # the latest result of tensors with the same elements
            if self._views and is_gapless(tensor):
                memory = tensor.untyped_storage()
                if (results := self._elements.get(memory)) is None:
                    results = self._elements[memory] = {}
                bits = tensor.is_conj(), tensor.is_neg()
                shared = results.setdefault((tensor.storage_offset(), tensor.numel(), tensor.dtype, *bits), [])
            result = shared[0] if shared and shared[0][0] == state else (state, make(tensor))
            self._seen[tensor] = result
            shared[:] = [result]
        return result[1]


def glimpse(tensor: Tensor) -> object:
    """A cheap sign of a change in the values: the sum of a small tensor, some elements of a large one.

    None if it would be slow, or nothing would show: on an accelerator, for a tensor without a version, and for a dtype
    that PyTorch can't sum.
    """
    if tensor.device.type != "cpu" or tensor.is_inference() or not tree.is_plain(tensor):
        return None
    with torch.DisableTorchFunction(), suppress(RuntimeError):
        values = tensor.detach()
        if values.numel() <= _SMALL:
            total = values.sum().item()
            return total if cmath.isfinite(total) else None
        if is_gapless(values):
            step = values.numel() // _GLIMPSED
            return values.as_strided((_GLIMPSED,), (step,), values.storage_offset()).tolist()
    return None
