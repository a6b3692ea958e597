"""Sums of a block of float32 on the CPU: what `stats` is made of.

C++ takes them in one pass over memory where it was built as hookcli was installed (native/sums.cpp, which needs a
compiler then, and no PyTorch); elsewhere PyTorch's operators do, in six. The figures agree to a few ulp.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookcli.tensors.chunks import Scratch

# 1 M float32 elements are 4 MB: small enough for the cache, and measured a little faster than 2 MB or 8 MB.
BLOCK = 1 << 20
# The library reads a block in one thread, in 0.5 ms. The operators take 3.2 in one, and less in more than these.
_FEW = 6


class Sums(NamedTuple):
    """Of a block: its smallest and largest element, the sums of all and of their squares, how many are zero.

    Where one is NaN or Inf, so is `total`; the others then are anything.
    """

    low: float
    high: float
    total: float
    squares: float
    zeros: float


def sums(block: Tensor) -> Sums:
    """Of a one-dimensional float32 block on the CPU, of 1 to `BLOCK` elements, with any stride."""
    address = _address(block) if built and torch.get_num_threads() <= _FEW else 0
    return built(address, block.numel()) if built and address else by_operators(block)


def _address(block: Tensor) -> int:
    """Where its elements lie one after the other; 0 where they don't, or where asking would change something.

    Subclasses and functorch's wrappers have no memory of their own, and know what operators make of them.
    """
    if not (type(block) is Tensor and block.is_contiguous() and not block.is_neg()):
        return 0
    c: Any = torch._C
    try:
        return 0 if c._is_cow_tensor(block) else block.data_ptr()
    except (RuntimeError, AttributeError):  # the latter of a PyTorch without that question, which is not public
        return 0


_scratch = Scratch(BLOCK, count=1)


def by_operators(block: Tensor) -> Sums:
    """The same by PyTorch's operators."""
    scratch = _scratch.blocks[0][: block.numel()]
    low, high = (value.item() for value in torch.aminmax(block))
    # mul then sum, not dot: BLAS adds in a straight line and is off by 1e-4 where values repeat; sum is pairwise.
    squares = torch.mul(block, block, out=scratch).sum().item()
    zeros = torch.eq(block, 0, out=scratch).sum().item() if low <= 0.0 <= high else 0.0
    return Sums(low, high, block.sum().item(), squares, zeros)


def _load() -> Callable[[int, int], Sums] | None:
    """The C++ library, if there is one for this Python and machine."""
    spec = importlib.util.find_spec("hookcli.tensors._sums")
    if spec is None or spec.origin is None:
        return None
    try:
        function = ctypes.CDLL(spec.origin).hookcli_sums_1
    except (OSError, AttributeError):  # of another machine; of an older hookcli, in a checkout
        return None
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p), None

    def call(address: int, numel: int) -> Sums:
        found = (ctypes.c_double * len(Sums._fields))()
        function(address, numel, found)
        return Sums(*found)

    return call


built = _load()
