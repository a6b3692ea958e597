"""A tensor as it lies in a file: its header, and its elements block by block, so that memory stays bounded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookcli.errors import UsageError
from hookcli.system.files import opened

Array = NDArray[np.generic]
Values = NDArray[np.float64]
Floats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Coding:
    """The way in which a file codes the elements of a tensor.

    `storage` is NumPy's dtype of an element as it lies in the file, always little-endian. `table` makes the value of
    every code, for the codings of one or two bytes; None for the others, which NumPy reads.
    """

    storage: np.dtype[np.generic]
    table: Callable[[], Values] | None = None


def values(coding: str, block: Array) -> Values:
    """The values of a block of coded elements as float64; complex ones as their magnitudes."""
    if CODINGS[coding].table:
        values: Values = table(coding)[block]
        return values
    return np.abs(block.astype(np.complex128)) if block.dtype.kind == "c" else block.astype(np.float64)


def narrow_values(coding: str, block: Array) -> Floats:
    """The values as float32 where it has all values of the coding, else as float64."""
    if coding != "float32" and not CODINGS[coding].table:
        return values(coding, block)
    if coding == "float32":
        return block.astype(np.float32)
    narrow: Floats = table(coding, narrow=True)[block]
    return narrow


@cache
def table(coding: str, *, narrow: bool = False) -> Any:
    """The value of every code of a coding of one or two bytes, as float64, or if `narrow` as float32."""
    make = CODINGS[coding].table
    assert make is not None
    with np.errstate(invalid="ignore"):  # signalling NaN
        return make().astype(np.float32 if narrow else np.float64, copy=False)


def _viewed(storage: str, dtype: str) -> Values:
    """The table of a dtype that NumPy has."""
    return np.arange(1 << 8 * np.dtype(storage).itemsize, dtype=storage).view(dtype).astype(np.float64)


def _float8(mantissa: int, bias: int, *, fnuz: bool = False, infinite: bool = False) -> Values:
    """The table of an 8-bit float: a sign, an exponent, and so many bits of mantissa.

    `infinite`: the highest exponent is for Inf and NaN, as in IEEE 754; otherwise only codes of ones are NaN, or with
    `fnuz` only the negative zero (https://onnx.ai/onnx/technical/float8.html).
    """
    codes = np.arange(256)
    fraction, exponent = codes & ((1 << mantissa) - 1), (codes & 127) >> mantissa
    significand = np.where(exponent == 0, 0, 1 << mantissa) + fraction
    sizes = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa)
    if fnuz:
        sizes[128] = np.nan
    elif infinite:
        top = exponent == 127 >> mantissa
        sizes[top] = np.where(fraction[top] == 0, np.inf, np.nan)
    else:
        sizes[[127, 255]] = np.nan
    signed: Values = np.where(codes < 128, sizes, -sizes)
    return signed


_TABLES: dict[str, tuple[str, Callable[[], Values]]] = {
    "float16": ("<u2", lambda: _viewed("<u2", "<f2")),
    "bfloat16": ("<u2", lambda: (np.arange(1 << 16, dtype="<u4") << 16).view("<f4").astype(np.float64)),
    "int16": ("<u2", lambda: _viewed("<u2", "<i2")),
    "uint16": ("<u2", lambda: _viewed("<u2", "<u2")),
    "int8": ("u1", lambda: _viewed("u1", "i1")),
    "uint8": ("u1", lambda: _viewed("u1", "u1")),
    "bool": ("u1", lambda: np.minimum(np.arange(256), 1).astype(np.float64)),
    "float8_e4m3fn": ("u1", lambda: _float8(3, 7)),
    "float8_e4m3fnuz": ("u1", lambda: _float8(3, 8, fnuz=True)),
    "float8_e5m2": ("u1", lambda: _float8(2, 15, infinite=True)),
    "float8_e5m2fnuz": ("u1", lambda: _float8(2, 16, fnuz=True)),
    "float8_e8m0fnu": ("u1", lambda: np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)),  # scales of MX formats
}
_NUMPY = {
    **{f"float{bits}": f"<f{bits // 8}" for bits in (32, 64)},
    **{f"{sign}int{bits}": f"<{sign or 'i'}{bits // 8}" for sign in ("", "u") for bits in (32, 64)},
    **{f"complex{bits}": f"<c{bits // 8}" for bits in (64, 128)},
}
CODINGS = {
    **{name: Coding(np.dtype(storage), make) for name, (storage, make) in _TABLES.items()},
    **{name: Coding(np.dtype(storage)) for name, storage in _NUMPY.items()},
}
"""The codings that can be read, by PyTorch's name of the dtype."""


BLOCK = 1 << 19
"""Elements of a block: its float64 values take 4 MiB, and a few such blocks fit a cache of 16 MiB."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, or of a model, that is read only block by block.

    `dtype` is PyTorch's name, or GGUF's of a quantized type. `coding` is how `blocks` codes the elements (see
    `codings`), "" if their values can't be read; `unreadable` then says why. `blocks(n)` yields one-dimensional blocks
    of at most n elements in the order of memory. `tied` names the tensor before it that is the same memory.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str
    coding: str
    blocks: Callable[[int], Iterator[Array]] = field(repr=False)
    unreadable: str = ""
    tied: str = ""
    kind: str = ""
    type: str = ""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def is_complex(self) -> bool:
        """True if its elements are read as complex numbers."""
        return bool(self.coding) and CODINGS[self.coding].storage.kind == "c"

    @property
    def columns(self) -> int:
        """The width of the matrix that an operator of this weight applies: all dimensions but the first; 1 for a
        vector."""
        return math.prod(self.shape[1:])

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) > 1 and self.shape[0] > 0 and self.columns > 0

    def values(self, size: int = BLOCK) -> Iterator[Values]:
        """The elements as float64, in blocks of at most `size`."""
        return (values(self.coding, block) for block in self.blocks(size))

    def rows(self) -> Iterator[Floats]:
        """The matrix in blocks of whole rows, of shape (rows, columns); as float32 if that has all of its values."""
        size = max(BLOCK // self.columns, 1) * self.columns
        return (narrow_values(self.coding, block).reshape(-1, self.columns) for block in self.blocks(size))


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The tensors of a file or folder: its name as given, its format, its tensors, and remarks for people."""

    name: str
    format: str
    tensors: Sequence[StoredTensor]
    metadata: dict[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()


def by_number(tensor: StoredTensor) -> list[tuple[str, int]]:
    """The key that sorts layers.2 before layers.10: the library writes tensors in the order of the alphabet."""
    parts = re.findall(r"(\D*)(\d{0,18})", tensor.name)
    return [(text, int(digits or 0)) for text, digits in parts]


def damaged(file: str | Path, why: str) -> UsageError:
    """The error for a file that is not what its name says."""
    return UsageError(f"{file}: damaged: {why}")


def in_file(file: Path, offset: int, numel: int, coding: str) -> Callable[[int], Iterator[Array]]:
    """The blocks of a tensor whose elements lie one after the other from `offset`."""
    return partial(_read, file, offset, numel, CODINGS[coding].storage) if coding else partial(_read, file, 0, 0, _BYTE)


_BYTE = np.dtype("u1")


def _read(file: Path, offset: int, numel: int, storage: np.dtype[Any], size: int) -> Iterator[Array]:
    """Read the elements into one buffer again and again.

    A memory map would count towards the process's memory page by page, and would kill it where the file is cut
    meanwhile.
    """
    buffer = np.empty(min(size, numel), storage)
    with open_unbuffered(file) as opened:
        opened.seek(offset)
        for begin in range(0, numel, size):
            block = buffer[: min(size, numel - begin)]
            read_into(opened, block.data.cast("B"), file)
            yield block


def open_unbuffered(file: Path) -> Any:
    """The file, opened for reading without a buffer. Raises UsageError if that is not possible."""
    try:
        return opened(file, buffering=0)
    except OSError as error:
        raise UsageError(f"{file}: can't be read ({error.strerror})") from error


def read_some(opened: Any, target: memoryview, file: Path) -> int:
    """Read what comes next into `target`. Returns its length. Raises UsageError if the file can't be read."""
    try:
        return int(opened.readinto(target))
    except OSError as error:
        raise UsageError(f"{file}: can't be read ({error.strerror})") from error


def read_into(opened: Any, target: memoryview, file: Path) -> None:
    """Fill `target` from the file. Raises UsageError if the file ends before."""
    filled = 0
    while filled < len(target):
        count = read_some(opened, target[filled:], file)
        if not count:
            raise damaged(file, "it ends within a tensor")
        filled += count
