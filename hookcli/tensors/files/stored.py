"""A tensor as it lies in a file: its header, and its elements block by block, so that memory stays bounded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hookcli.errors import UsageError
from hookcli.system.files import opened
from hookcli.tensors.files.codings import CODINGS, Array, Floats, Values, narrow_values, values

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


def read_into(opened: Any, target: memoryview, file: Path) -> None:
    """Fill `target` from the file. Raises UsageError if the file ends before."""
    filled = 0
    while filled < len(target):
        try:
            count = opened.readinto(target[filled:])
        except OSError as error:
            raise UsageError(f"{file}: can't be read ({error.strerror})") from error
        if not count:
            raise damaged(file, "it ends within a tensor")
        filled += count
