"""The library of C++ functions that read memory on the CPU, each in one pass and in as many threads as PyTorch has.

It was built when hookcli was installed, if there was a compiler (sums.cpp needs no PyTorch); without it, and where a
tensor can't be read by its address, PyTorch's operators do the same in more passes. The figures agree to a few ulp.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookcli.table import STATS_KEYS
from hookcli.table.histogram import FORMATS, LINEAR, Histogram
from hookcli.tensors.chunks import is_gapless
from hookcli.tensors.torch_private import is_copy_on_write

_FILE = Path(__file__).with_name("_sums.so")  # on all systems: no part of it is Python's
_WORD = 4  # bytes of the integers as which checksums read wider elements
_SHORT = 8  # elements of a row, each of which costs as much to begin as several elements
_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64
_BEFORE_EXPONENTS = 2 + len(FORMATS) + 2 * LINEAR
_LIMITS = [math.nextafter(form.most, math.inf) if form.beyond else form.most for form in FORMATS]


class Apart(NamedTuple):
    """The largest absolute difference of two chunks, the sums of the absolute and of the squared differences, and the
    sums of squares of both chunks.

    If an element is NaN or Inf, so is `total`; the other fields then mean nothing.
    """

    peak: float
    total: float
    errors: float
    of_a: float
    of_b: float


class Library:
    """The loaded library. Raises OSError, AttributeError or ValueError where it is missing, or of another hookcli."""

    def __init__(self, file: Path = _FILE) -> None:
        library = ctypes.CDLL(str(file))
        types = _text(library, "hookcli_types").split()
        if _text(library, "hookcli_strided_statistics_fields").split() != list(STATS_KEYS):
            raise ValueError("other statistics")
        if _text(library, "hookcli_distance_of_types_fields").split() != list(Apart._fields):
            raise ValueError("other sums")
        self._types = {getattr(torch, name): types.index(name) for name in types[:-1]}
        self._byte = types.index("byte")
        self._statistics, self._distance = library.hookcli_strided_statistics, library.hookcli_distance_of_types
        layout = (_POINTER, _INT64, ctypes.c_int, _POINTER, _POINTER)
        self._statistics.argtypes = (*layout, ctypes.c_int, _POINTER, ctypes.c_int, *[_POINTER] * 3)
        self._distance.argtypes = (_POINTER, ctypes.c_int, _POINTER, ctypes.c_int, _INT64, ctypes.c_int, _POINTER)
        self._statistics.restype = self._distance.restype = ctypes.c_bool
        library.hookcli_instructions.restype = ctypes.c_char_p
        self.instructions = library.hookcli_instructions().decode()
        # Not in a library that was built before it was written.
        self._checksums: Any = getattr(library, "hookcli_checksums", None)
        self._use_openmp = library.hookcli_use_openmp
        self._use_openmp.argtypes = (_POINTER,)
        self.shares_threads = self.share_threads()
        *sizes, exponents = (_INT64 * 3).in_dll(library, "hookcli_histogram_sizes")
        if sizes != [len(FORMATS), LINEAR]:
            raise ValueError("other histograms")
        self._room = _INT64 * (_BEFORE_EXPONENTS + 2 * exponents)
        self._limits = (ctypes.c_double * len(_LIMITS))(*_LIMITS)

    def share_threads(self, share: bool = True) -> bool:
        """Have PyTorch's own OpenMP threads do the work, if they can be found; else the library starts threads.

        In a forked process they are always the library's.
        """
        runtime = None
        if share:
            with suppress(OSError, AttributeError):
                pytorch = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
                everywhere = ctypes.CDLL(None)  # as the loader looks: a runtime in LD_PRELOAD is PyTorch's, too
                runtime = getattr(everywhere, "GOMP_parallel", None) or pytorch.GOMP_parallel
        self._use_openmp(ctypes.cast(runtime, _POINTER) if runtime else None)
        return runtime is not None

    def statistics(self, x: Tensor, *, hist: bool) -> tuple[list[float], Histogram | None] | None:
        """The statistics by the names of STATS_KEYS, and the histogram if asked for; None if `x` is empty, or not for
        the library.
        """
        dtype, address = x.dtype, _address(x)
        kind = self._byte if dtype.itemsize == 1 else self._types.get(dtype)
        if not (address and x.numel()) or kind is None:
            return None
        figures = (ctypes.c_double * len(STATS_KEYS))()
        room, limits = (self._room(), self._limits) if hist else (None, None)
        values = _values_of_bytes(dtype) if dtype.itemsize == 1 else None
        layout = (address, x.numel(), *((0, None, None) if is_gapless(x) else _gaps(x)))
        if not self._statistics(*layout, kind, values, torch.get_num_threads(), limits, figures, room):
            return None
        if room is None:
            return list(figures), None
        low, bins, *counts = room[: _BEFORE_EXPONENTS + 2 * room[1]]
        left = iter(counts)
        sizes = (len(FORMATS), LINEAR, LINEAR, bins, bins)
        overflows, *linear, negative, positive = (tuple(islice(left, size)) for size in sizes)
        sides = [side if any(side) else () for side in linear]
        return list(figures), Histogram(low, negative, positive, overflows, *sides)

    def distance(self, a: Tensor, b: Tensor) -> Apart | None:
        """The sums over two tensors of float32, float16 or bfloat16 of one size; None if one is not for the library."""
        if not (is_readable(a) and is_readable(b)):
            return None
        sums = (ctypes.c_double * len(Apart._fields))()
        arguments = (a.data_ptr(), self._types[a.dtype], b.data_ptr(), self._types[b.dtype], a.numel())
        return Apart(*sums) if self._distance(*arguments, torch.get_num_threads(), sums) else None

    @property
    def sums_bits(self) -> bool:
        """True if it can make checksums."""
        return self._checksums is not None

    def checksums(self, tensors: Sequence[Tensor], places: Tensor, of_rows: Tensor) -> Tensor:
        """The checksum of the bits of each readable tensor, with these multipliers of elements and of rows."""
        sums = torch.empty(len(tensors), dtype=torch.int64, device="cpu")
        widths = [min(x.element_size(), _WORD) for x in tensors]
        lengths = [x.numel() * x.element_size() // width for x, width in zip(tensors, widths, strict=True)]
        addresses = (_POINTER * len(tensors))(*map(Tensor.data_ptr, tensors))
        sizes, numbers = ((_INT64 * len(tensors))(*each) for each in (widths, lengths))
        multipliers = _POINTER(places.data_ptr()), _INT64(len(places)), _POINTER(of_rows.data_ptr())
        threads, to = torch.get_num_threads(), _POINTER(sums.data_ptr())
        self._checksums(_INT64(len(tensors)), addresses, sizes, numbers, *multipliers, threads, to)
        return sums


def _text(library: ctypes.CDLL, name: str) -> str:
    return (ctypes.c_char_p.in_dll(library, name).value or b"").decode()


def is_readable(x: Tensor) -> bool:
    """True if the elements lie one after the other, and may be read by their address, on any device."""
    return x.is_contiguous() and bool(_address(x))


def _address(x: Tensor) -> int:
    """The lowest address of the elements; 0 if there is none, or if asking would change something.

    Subclasses and functorch's wrappers have no memory of their own; only operators can read them.
    """
    if not (type(x) is Tensor and not x.is_neg()):
        return 0
    try:
        return 0 if is_copy_on_write(x) else x.data_ptr()
    except RuntimeError:
        return 0


def _gaps(x: Tensor) -> tuple[int, object, object]:
    """The number of dimensions, in as few as possible, and their sizes and strides; rows of the last one are read."""
    dimensions: list[tuple[int, int]] = []  # stride, size
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True), key=lambda one: (one[0] > 0, -one[0])):
        if size == 1:
            continue
        if dimensions and dimensions[-1][0] == stride * size:
            size *= dimensions.pop()[1]
        dimensions.append((stride, size))
    if dimensions[-1][1] < _SHORT:
        dimensions.sort(key=lambda one: one[1])
    strides, sizes = zip(*dimensions, strict=True)
    many = _INT64 * len(dimensions)
    return len(dimensions), many(*sizes), many(*strides)


@cache
def _values_of_bytes(dtype: torch.dtype) -> object:
    """The value of each byte as a number of this dtype, as 256 floats."""
    with torch.inference_mode(False):
        bytes_ = torch.arange(256, dtype=torch.uint8, device="cpu")
        numbers = bytes_ != 0 if dtype is torch.bool else bytes_.view(dtype)
        return (ctypes.c_float * 256)(*numbers.to(torch.float32).tolist())


def described() -> str:
    """The code that takes statistics on the CPU here, and its threads, or why it is not the library's."""
    if not loaded:
        another = f"{_FILE} is of another machine or of another hookcli: install hookcli again"
        why = another if _FILE.exists() else "hookcli was installed without a C++ compiler"
        return f"PyTorch's operators ({why})"
    count = torch.get_num_threads()
    threads = "one thread" if count == 1 else f"{count} threads of {'PyTorch' if loaded.shares_threads else 'its own'}"
    return f"the C++ library with {loaded.instructions}, in {threads}"


def _loaded() -> Library | None:
    with suppress(OSError, AttributeError, ValueError):  # without a compiler; of another machine; of another hookcli
        return Library()
    return None


loaded = _loaded()
"""None without the library: operators then do the same."""
