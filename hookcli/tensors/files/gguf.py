"""Reads the headers of GGUF files, without the library and without torch; values of quantized types need `gguf`.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from hookcli.tensors.files.stored import (
    CODINGS,
    Array,
    StoredTensor,
    TensorFile,
    damaged,
    in_file,
    open_unbuffered,
    read_into,
)

MAGIC = b"GGUF"
_PLAIN = {0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16"}
_BLOCKS = {  # of quantized types, by number: the name, and the elements and bytes of a block
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DIMENSIONS = 8
_NEEDS = "values of quantized types need gguf: pip install 'hookcli[gguf]'"


def read(file: Path) -> TensorFile:
    """The tensors of a GGUF file, shapes in PyTorch's order. Raises UsageError for other files."""
    try:
        with open_unbuffered(file) as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as header:
            return _tensors(file, _Reader(header))
    except (struct.error, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise damaged(file, f"its GGUF header is cut or wrong ({error})") from error


class _Reader:
    """Reads values from the header, one after the other."""

    def __init__(self, header: mmap.mmap) -> None:
        self.header = header
        self.at = 4

    def number(self, code: str) -> Any:
        """One number; struct.error where the file ends before."""
        value = struct.unpack_from(f"<{code}", self.header, self.at)[0]
        self.at += struct.calcsize(code)
        return value

    def text(self) -> str:
        size = self.number("Q")
        if size > len(self.header) - self.at:
            raise struct.error("a name is longer than the file")
        self.at += size
        return self.header[self.at - size : self.at].decode()

    def value(self, kind: int) -> object:
        """A value of metadata; of an array only how many items it has."""
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        item, count = self.number("I"), self.number("Q")
        if item in _NUMBERS:
            self.at += count * struct.calcsize(_NUMBERS[item])
        else:
            for _ in range(count):
                if item == _STRING:  # not decoded: a vocabulary has many
                    self.at += 8 + struct.unpack_from("<Q", self.header, self.at)[0]
                else:
                    self.value(item)
        return f"{count:,} items"

    def shape(self) -> tuple[int, ...]:
        """A tensor's dimensions, which GGUF lists from the innermost."""
        dimensions = self.number("I")
        if dimensions > _DIMENSIONS:
            raise struct.error(f"a tensor of {dimensions} dimensions")
        return tuple(self.number("Q") for _ in range(dimensions))[::-1]


def _tensors(file: Path, reader: _Reader) -> TensorFile:
    version = reader.number("I")
    if not 2 <= version <= 3:
        raise damaged(file, f"GGUF version {version}; versions 2 and 3 can be read (little-endian)")
    count, keys = reader.number("Q"), reader.number("Q")
    metadata = {reader.text(): reader.value(reader.number("I")) for _ in range(keys)}
    entries = [(reader.text(), reader.shape(), reader.number("I"), reader.number("Q")) for _ in range(count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise damaged(file, f"alignment {alignment!r}")
    begin = -(-reader.at // alignment) * alignment
    tensors = [_tensor(file, *entry[:3], begin + entry[3], len(reader.header)) for entry in entries]
    parts = metadata.get("split.count")
    several = isinstance(parts, int) and parts > 1
    notes = [f"{file.name} is one of {parts} parts; name the folder to read all"] if several else []
    return TensorFile(str(file), f"GGUF {version}", tensors, metadata, notes)


def _tensor(file: Path, name: str, shape: tuple[int, ...], kind: int, offset: int, end: int) -> StoredTensor:
    numel = math.prod(shape)
    if kind in _PLAIN:
        dtype = coding = _PLAIN[kind]
        nbytes, why = numel * CODINGS[dtype].storage.itemsize, ""
        blocks = in_file(file, offset, numel, coding)
    elif kind in _BLOCKS:
        dtype, elements, size = _BLOCKS[kind]
        if not shape or shape[-1] % elements:
            raise damaged(
                file, f"the rows of {name!r} are not a multiple of the {elements} elements of {dtype}'s blocks"
            )
        nbytes = numel // elements * size
        coding, why = ("float32", "") if find_spec("gguf") else ("", _NEEDS)
        blocks = partial(_dequantized, file, offset, numel, kind)
    else:
        dtype, coding, nbytes, why = f"GGML type {kind}", "", 0, f"GGML type {kind} is not known"
        blocks = in_file(file, offset, numel, coding)
    if offset + nbytes > end:
        raise damaged(file, f"{name!r} lies beyond the end of the file (a download cut short?)")
    return StoredTensor(name, shape, dtype, nbytes, file.name, coding, blocks, why)


def _dequantized(file: Path, offset: int, numel: int, kind: int, size: int) -> Iterator[Array]:
    """The elements as float32 in blocks of at most `size`."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    _, elements, nbytes = _BLOCKS[kind]
    raw = np.empty((max(size // elements, 1), nbytes), np.uint8)
    with open_unbuffered(file) as opened:
        opened.seek(offset)
        for begin in range(0, numel // elements, len(raw)):
            part = raw[: numel // elements - begin]
            read_into(opened, part.data.cast("B"), file)
            yield dequantize(part, GGMLQuantizationType(kind)).reshape(-1)
