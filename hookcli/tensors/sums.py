"""Sums over a chunk of float32 on the CPU, from which `stats` computes its figures.

A C++ library takes them in one pass over memory, if it was built when hookcli was installed (sums.cpp needs a compiler
but no PyTorch); otherwise PyTorch's operators do, in six passes. The figures agree to a few ulp.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hookcli.tensors.chunks import Scratch
from hookcli.tensors.torch_private import is_copy_on_write

# 1 M float32 elements are 4 MB: small enough for the cache, and measured a little faster than 2 MB or 8 MB.
CHUNK = 1 << 20
# The library reads a chunk in one thread, in 0.5 ms. The operators take 3.2 in one, and less in more than these.
_FEW = 6


class Sums(NamedTuple):
    """The smallest and largest element of a chunk, the sums of its elements and of their squares, and how many are
    zero.

    If an element is NaN or Inf, so is `total`; the other fields then mean nothing.
    """

    low: float
    high: float
    total: float
    squares: float
    zeros: float


def sums(chunk: Tensor) -> Sums:
    """The sums of a one-dimensional float32 chunk on the CPU, of 1 to `CHUNK` elements, with any stride."""
    address = _address(chunk) if built and torch.get_num_threads() <= _FEW else 0
    return built(address, chunk.numel()) if built and address else by_operators(chunk)


def _address(chunk: Tensor) -> int:
    """The address of the elements; 0 if they are not contiguous, or if asking would change something.

    Subclasses and functorch's wrappers have no memory of their own; only operators can read them.
    """
    if not (type(chunk) is Tensor and chunk.is_contiguous() and not chunk.is_neg()):
        return 0
    try:
        return 0 if is_copy_on_write(chunk) else chunk.data_ptr()
    except RuntimeError:
        return 0


_scratch = Scratch(CHUNK, count=1)


def by_operators(chunk: Tensor) -> Sums:
    """The sums by PyTorch's operators."""
    scratch = _scratch.chunks[0][: chunk.numel()]
    low, high = (value.item() for value in torch.aminmax(chunk))
    # mul then sum, not dot: BLAS adds in a straight line and is off by 1e-4 where values repeat; sum is pairwise.
    squares = torch.mul(chunk, chunk, out=scratch).sum().item()
    zeros = torch.eq(chunk, 0, out=scratch).sum().item() if low <= 0.0 <= high else 0.0
    return Sums(low, high, chunk.sum().item(), squares, zeros)


def _load() -> Callable[[int, int], Sums] | None:
    """The C++ library, if there is one for this Python and machine that computes the fields of `Sums`."""
    spec = importlib.util.find_spec("hookcli.tensors._sums")
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        function, names = library.hookcli_sums, ctypes.c_char_p.in_dll(library, "hookcli_sums_fields").value
    except (OSError, AttributeError, ValueError):  # of another machine; of an older hookcli, in a checkout
        return None
    if names != " ".join(Sums._fields).encode():
        return None
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p), None

    def call(address: int, numel: int) -> Sums:
        found = (ctypes.c_double * len(Sums._fields))()
        function(address, numel, found)
        return Sums(*found)

    return call


built = _load()
