"""The library of C++ functions that read chunks of float32 on the CPU, each in one pass over memory.

It was built when hookcli was installed, if there was a compiler (sums.cpp needs no PyTorch); without it, and where a
chunk can't be read by its address, PyTorch's operators do the same in more passes. The figures agree to a few ulp.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hookcli.tensors.torch_private import is_copy_on_write

# A function reads a chunk in one thread. The operators take several times as long in one, and less in more than these.
_FEW = 6


def addresses(*chunks: Tensor) -> tuple[int, ...]:
    """The addresses of the elements of contiguous float32 chunks; empty if the library is not to read one of them."""
    found = tuple(map(_address, chunks)) if torch.get_num_threads() <= _FEW else ()
    return found if all(found) else ()


def is_readable(chunk: Tensor) -> bool:
    """True if a kernel may read the elements of a one-dimensional tensor by their address, on any device."""
    return bool(_address(chunk))


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


def function(name: str, fields: tuple[str, ...], runs: int) -> Callable[..., list[float]] | None:
    """The function `hookcli_{name}` of the addresses of so many `runs` and their length, which returns the `fields`.

    None if there is no library for this Python and machine, or if its function computes other fields.
    """
    spec = importlib.util.find_spec("hookcli.tensors._sums")
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        found: Any = library[f"hookcli_{name}"]
        names = ctypes.c_char_p.in_dll(library, f"hookcli_{name}_fields").value
    except (OSError, AttributeError, ValueError):  # of another machine; of an older hookcli, in a checkout
        return None
    if names != " ".join(fields).encode():
        return None
    found.argtypes, found.restype = (*[ctypes.c_void_p] * runs, ctypes.c_int64, ctypes.c_void_p), None
    room = ctypes.c_double * len(fields)

    def call(*arguments: int) -> list[float]:
        figures = room()
        found(*arguments, figures)
        return list(figures)

    return call
