"""Tensors of a TorchScript archive, which torch.jit.save wrote: its parameters, buffers and constants.

None of the archive's code is compiled or run: its pickle is read with classes of hookcli's alone, and the text of its
code only tells parameters from buffers.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hookcli.errors import UsageError, in_brief
from hookcli.system.files import member, opened, regular
from hookcli.tensors.files.file_kinds import CONSTANTS
from hookcli.tensors.torch_private import REBUILDS, TYPED

_CLASS = re.compile(r"^class (\w+)\(Module\):\n  __parameters__ = \[(.*)\]\n  __buffers__ = \[(.*)\]", re.MULTILINE)
_QUOTED = re.compile(r'"([^"]*)"')
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
_HEADER = 30  # bytes of a member's header, before its name


class Held(NamedTuple):
    """A tensor of an archive: its name, "parameter", "buffer", "attribute" or "constant", and its module's class."""

    name: str
    tensor: Tensor
    kind: str
    type: str


def is_torchscript(file: Path) -> bool:
    """True for an archive of torch.jit.save."""
    with suppress(OSError, zipfile.BadZipFile), opened(file) as stream, zipfile.ZipFile(stream) as archive:
        return any(name.partition("/")[2] == CONSTANTS for name in archive.namelist())
    return False


def read_torchscript(file: Path) -> list[Held]:
    """The tensors of an archive, in its order. Raises UsageError for a damaged one, or one that names other classes."""
    try:
        with opened(file) as stream, zipfile.ZipFile(stream) as archive:
            root = next(name[: -len(CONSTANTS)] for name in archive.namelist() if name.endswith(f"/{CONSTANTS}"))
            kinds = declared_kinds(archive, f"{root}code/")
            bytes_ = torch.from_file(str(regular(file)), False, file.stat().st_size, dtype=torch.uint8)
            whole = _Reader(archive, f"{root}data/", bytes_, member(archive, f"{root}data.pkl")).load()
            constants = _Reader(archive, f"{root}constants/", bytes_, member(archive, root + CONSTANTS)).load()
    except Exception as error:  # zipfile and pickle fail in many ways
        raise UsageError(
            f"{file}: a TorchScript archive that is damaged, or can't be read ({in_brief(error)})"
        ) from error
    held = [*held_tensors(whole, kinds)]
    numbered = enumerate(constants if isinstance(constants, tuple) else ())
    return held + [Held(f"CONSTANTS.c{n}", x, "constant", "") for n, x in numbered if isinstance(x, Tensor)]


class _Object:
    """An object of an archive's own class, whose state is its attributes."""

    qualified = ""

    def __init__(self) -> None:
        self.attributes: Mapping[Any, Any] = {}

    def __setstate__(self, state: object) -> None:
        self.attributes = state if isinstance(state, dict) else {}


class _Reader(pickle.Unpickler):
    """Reads a pickle of an archive, whose tensors are in the members below `folder`."""

    def __init__(self, archive: zipfile.ZipFile, folder: str, whole: Tensor, pickled: bytes) -> None:
        super().__init__(BytesIO(pickled))
        self._archive, self._folder, self._whole = archive, folder, whole

    def find_class(self, module: str, name: str) -> Any:
        if module == "__torch__" or module.startswith("__torch__."):
            return type("_Object", (_Object,), {"qualified": f"{module}.{name}", "attributes": {}})
        if module == TYPED:
            return lambda value, *_: value
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == REBUILDS:
            return rebuilt
        dtype = getattr(getattr(torch, name, None), "dtype", None) if name.endswith("Storage") else None
        if module == "torch" and isinstance(dtype, torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        """The elements of a storage, as a vector in the memory of the file."""
        _, dtype, key, _, numel = pid
        info = self._archive.getinfo(f"{self._folder}{key}")
        begin = info.header_offset
        name, extra = struct.unpack("<HH", bytes(self._whole[begin + _HEADER - 4 : begin + _HEADER].tolist()))
        begin += _HEADER + name + extra
        size = numel * dtype.itemsize
        if info.compress_type != zipfile.ZIP_STORED or not 0 <= size <= info.file_size:
            raise pickle.UnpicklingError(f"the member {key} is compressed, or too short")
        block = self._whole[begin : begin + size]
        return (block.clone() if begin % dtype.itemsize else block).view(dtype)


def rebuilt(storage: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], *_: object) -> Tensor:
    """A tensor in a storage. Raises UnpicklingError for one that is not within it."""
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    inside = min(offset, *size, *stride, 0) == 0 and (0 in size or last < storage.numel())
    if not inside:
        raise pickle.UnpicklingError("a tensor is larger than its storage")
    return storage.as_strided(tuple(size), tuple(stride), storage.storage_offset() + offset)


def declared_kinds(archive: zipfile.ZipFile, folder: str) -> dict[str, tuple[set[str], set[str]]]:
    """The names of the parameters and of the buffers of each class, as the archive's code declares them."""
    kinds = {}
    for path in archive.namelist():
        if path.startswith(folder) and path.endswith(".py"):
            module = path[len(folder) : -3].replace("/", ".")
            for name, parameters, buffers in _CLASS.findall(member(archive, path).decode(errors="replace")):
                kinds[f"{module}.{name}"] = {*_QUOTED.findall(parameters)}, {*_QUOTED.findall(buffers)}
    return kinds


def held_tensors(whole: object, kinds: Mapping[str, tuple[set[str], set[str]]]) -> Iterator[Held]:
    """The tensors within an object of an archive: a module's before its parts'."""
    waiting: list[tuple[str, object, str]] = [("", whole, "")]
    seen: set[int] = set()
    while waiting:
        prefix, owner, around = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        qualified = owner.qualified if isinstance(owner, _Object) else around
        parameters, buffers = kinds.get(qualified, ((), ())) if isinstance(owner, _Object) else ((), ())
        inner = []
        for name, value in _items(owner):
            kind = "parameter" if name in parameters else "buffer" if name in buffers else "attribute"
            if isinstance(value, Tensor):
                yield Held(f"{prefix}{name}", value, kind, _MANGLED.sub("", qualified).rpartition(".")[2])
            else:
                inner.append((f"{prefix}{name}.", value, qualified))
        waiting += reversed(inner)


def _items(owner: object) -> Iterator[tuple[str, object]]:
    if isinstance(owner, _Object):
        owner = owner.attributes
    if isinstance(owner, Mapping):
        yield from ((str(name), value) for name, value in owner.items())
    elif isinstance(owner, (list, tuple)):
        yield from ((str(number), value) for number, value in enumerate(owner))
