"""The bytes in use at most while a forward runs on the meta device, as CUDA's caching allocator hands them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from hookcli.hooks.storage_lifetimes import OperatorCall, StorageLifetimes, cuda_block
from hookcli.hooks.torch_private.meta_operators import operators_as_on_cuda


class Allocator:
    """Operators as they are, without memory inside of kernels."""

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> Any:
        """Call the operator."""
        return func(*args, **kwargs)

    def workspace(self, func: object, args: tuple[object, ...], out: object) -> int:
        """None: in inference, the kernels of attention keep nothing but their results."""
        return 0

    def allocated(self, x: Tensor) -> int:
        """The bytes of the block for the storage of a tensor; tensors on the CPU take none."""
        return cuda_block(x) if x.is_meta else 0


def peak_of(forward: Callable[[], object], weights: Iterable[Tensor]) -> int:
    """The most bytes in use while the forward runs, beside these weights, which exist before."""
    lifetimes = StorageLifetimes(lambda args: None, Allocator())
    with operators_as_on_cuda(fake=False), lifetimes:
        lifetimes.hold(weights, "", None)
        begun = len(lifetimes.log)
        kept = forward()
    used = peak = 0
    for entry in lifetimes.log[begun:]:
        if isinstance(entry, OperatorCall):
            peak = max(peak, used + entry.inside)
            used += sum(storage.nbytes for storage in entry.created)
        elif (released := lifetimes.released(entry)) is not None:
            used -= released.nbytes
    del kept
    return peak
