"""Memory that a function has allocated and no function has written to yet: the values in it are left over from others.

A mask over the storage marks the elements that were not written. It is on the CPU, so that nothing waits for an
accelerator: a write at indices that are on an accelerator is not marked, until one write covers the whole storage. Not
seen are writes of functions that are not PyTorch's (Triton's kernels), and memory of `torch.Tensor(3)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from hookcli.hooks.tensor_origins import memory_of
from hookcli.tensors import tree

_ALLOCATE = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "empty_quantized"),
    *("_empty_affine_quantized", "_empty_per_channel_affine_quantized", "resize_", "resize_as_"),
}
# Functions that may return a copy of what they received.
_COPY = {
    *("clone", "contiguous", "to", "_to_copy", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"),
    *("reshape", "flatten"),
}
_AT_INDEX = ("setitem", "index_put_", "_index_put_impl_")
_ALONG = ("scatter_", "index_copy_", "index_fill_")
_MASKED = ("masked_fill_", "masked_scatter_")


@dataclass(slots=True)
class _Memory:
    """A storage with elements that were not written; without a mask, that is all of them."""

    reference: StorageWeakRef
    itemsize: int
    mask: Tensor | None = None


class UninitialisedMemory:
    """Follows which elements functions have written, from one call to the next."""

    def __init__(self) -> None:
        self._known: dict[int, _Memory] = {}

    def called(
        self, name: str, args: Sequence[object], kwargs: Mapping[str, object], output: object, written: object
    ) -> None:
        """Take in a call that has ended; `written` are the tensors that it changed in place."""
        makes = name in _ALLOCATE or (name == "new" and all(isinstance(n, (int, torch.Size)) for n in args[1:]))
        copies = not makes and name in _COPY and self.within(args[:1])
        with torch.DisableTorchFunction():
            for _, x in tree.leaves(output if makes or copies else written if self._known else None):
                if not (makes or copies):
                    self._wrote(name, [*args[1:], *kwargs.values()], x)
                elif makes or memory_of(x) not in self._known:
                    self._allocated(x)

    def within(self, tensors: object) -> bool:
        """True if an element of these tensors was never written."""
        if not self._known:
            return False
        with torch.DisableTorchFunction():
            return any(self._is_within(x) for _, x in tree.leaves(tensors))

    def _is_within(self, x: Tensor) -> bool:
        memory = self._known.get(memory_of(x))
        if memory is None or not x.numel():
            return False
        if memory.mask is None or x.element_size() != memory.itemsize:
            return True
        return bool(_part(memory.mask, x).any())

    def _allocated(self, x: Tensor) -> None:
        if x.is_inference() or x.device.type == "meta" or not (x.numel() and tree.is_plain(x) and memory_of(x)):
            return  # writes to inference tensors show in no version
        self._known = {key: memory for key, memory in self._known.items() if not memory.reference.expired()}
        self._known[memory_of(x)] = _Memory(StorageWeakRef(x.untyped_storage()), x.element_size())

    def _wrote(self, name: str, given: Sequence[object], x: Tensor) -> None:
        """Note a write to a tensor by a function with the arguments `given` after the tensor."""
        memory = self._known.get(key := memory_of(x))
        if memory is None:
            return
        at = given[name in _ALONG] if name in (*_AT_INDEX, *_ALONG, *_MASKED) else None
        size = x.untyped_storage().nbytes()
        if at is None and x.nbytes == size:
            del self._known[key]
        elif x.element_size() == memory.itemsize and all(index.device.type == "cpu" for _, index in tree.leaves(at)):
            if memory.mask is None:
                with torch.inference_mode(False):
                    memory.mask = torch.ones(size // memory.itemsize, dtype=torch.bool, device="cpu")
            _unmark(_part(memory.mask, x), name, given)
            if not memory.mask.any():
                del self._known[key]


def _part(mask: Tensor, x: Tensor) -> Tensor:
    return mask.as_strided(x.size(), x.stride(), x.storage_offset())


def _unmark(part: Tensor, name: str, given: Sequence[Any]) -> None:
    """Unmark the elements that a function writes with the arguments `given` after the tensor itself."""
    if name == "setitem":
        part[given[0]] = False
    elif name in _AT_INDEX:
        part[tuple(slice(None) if index is None else index for index in given[0])] = False
    elif name in _ALONG:
        write = part.scatter_ if name == "scatter_" else part.index_fill_
        write(given[0], given[1], False)
    elif name in _MASKED:
        part.masked_fill_(given[0], False)
    else:
        part.fill_(False)
