"""Reads the headers of safetensors files, without the library and without torch.

The format: 8 bytes with the length of the header, little-endian, then the header in JSON, then the elements
(https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hookcli.tensors.files.stored import (
    CODINGS,
    StoredTensor,
    TensorFile,
    by_number,
    damaged,
    in_file,
    open_unbuffered,
    read_into,
)

FORMAT = "safetensors"
_LONGEST = 100_000_000  # bytes of a header, as in the library
_BITS = {  # PyTorch's name of a dtype, and the bits of an element
    "BOOL": ("bool", 8),
    **{
        f"{sign.upper()}{bits}": (f"{name}int{bits}", bits)
        for sign, name in (("i", ""), ("u", "u"))
        for bits in (8, 16, 32, 64)
    },
    **{f"F{bits}": (f"float{bits}", bits) for bits in (16, 32, 64)},
    "BF16": ("bfloat16", 16),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F6_E2M3": ("float6_e2m3", 6),
    "F6_E3M2": ("float6_e3m2", 6),
    "F4": ("float4_e2m1fn", 4),
}


def read(file: Path) -> TensorFile:
    """The tensors of a safetensors file, by name. Raises UsageError for other files."""
    size = file.stat().st_size
    header, begin = _header(file, size)
    metadata = header.pop("__metadata__", None)
    tensors = [_tensor(file, name, entry, begin, size - begin) for name, entry in header.items()]
    tensors.sort(key=lambda pair: pair[0])
    end = 0
    for offset, tensor in tensors:
        if offset < end:
            raise damaged(file, f"{tensor.name} overlaps another tensor")
        end = offset + tensor.nbytes
    texts = metadata if isinstance(metadata, dict) else {}
    return TensorFile(str(file), FORMAT, sorted((tensor for _, tensor in tensors), key=by_number), texts)


def _header(file: Path, size: int) -> tuple[dict[str, object], int]:
    """The header as a dict, and where the elements begin."""
    with open_unbuffered(file) as opened:
        if size < 8:
            raise damaged(file, "too short for a safetensors file")
        prefix = bytearray(8)
        read_into(opened, memoryview(prefix), file)
        length = int.from_bytes(prefix, "little")
        if length > min(size - 8, _LONGEST):
            raise damaged(file, f"not a safetensors file, or cut: its header would have {length:,} bytes")
        text = bytearray(length)
        read_into(opened, memoryview(text), file)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(file, f"the header of this safetensors file is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise damaged(file, "the header of this safetensors file is not a JSON object")
    return header, 8 + length


def _tensor(file: Path, name: str, entry: Any, begin: int, room: int) -> tuple[int, StoredTensor]:
    """The offset of a tensor's elements after the header, and the tensor."""
    try:
        dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(file, f"the header's entry for {name!r} is incomplete") from error
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in (*shape, first, last))
    if not whole or not isinstance(dtype, str) or not first <= last <= room:
        raise damaged(
            file, f"{name!r} has impossible sizes, or lies beyond the end of the file (a download cut short?)"
        )
    named, bits = _BITS.get(dtype, (dtype.lower(), 0))
    numel = math.prod(shape)
    if bits and (numel * bits + 7) // 8 != last - first:
        raise damaged(file, f"{name!r} has {last - first:,} bytes, which do not fit {dtype} of {shape}")
    coding = named if named in CODINGS else ""
    blocks = in_file(file, begin + first, numel, coding)
    unreadable = "" if coding else f"values of {named} can't be read"
    return first, StoredTensor(name, tuple(shape), named, last - first, file.name, coding, blocks, unreadable)
