"""PyTorch's functions: their names, and whether a call made or changed a tensor, or left its memory unwritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hookcli.hooks.tensor_origins import memory_of, version_of
from hookcli.hooks.torch_private.overrides import OPERATORS, OpOverload
from hookcli.tensors import tree

_TENSOR_ATTRIBUTES = tuple(getattr(Tensor, name).__get__ for name in ("T", "mT", "H", "mH", "data", "real", "imag"))


def reads_attribute(function: object) -> bool:
    """True for the function that reads an attribute of a tensor, but for attributes that are views, such as `T`."""
    return getattr(function, "__name__", "") == "__get__" and function not in _TENSOR_ATTRIBUTES


def writes(function: object) -> bool:
    """True for ATen's operators that change an argument: PyTorch counts the change only after a dispatch mode."""
    return isinstance(function, OpOverload) and (
        function.overloadpacket.__name__.endswith("_") or str(function).endswith(".out")
    )


def given_tensors(args: Sequence[object], kwargs: Mapping[str, object]) -> list[Tensor]:
    """The tensors among a function's arguments, and in the lists and mappings there."""
    tensors: list[Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple, dict)):
            tensors += (x for _, x in tree.leaves(value))
    return tensors


class ArgumentTensors:
    """The tensors that a call received, with the versions that they had before it. It lives as long as the call."""

    __slots__ = ("tensors", "versions")

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors
        with torch.DisableTorchFunction():  # neither the program's modes nor its subclasses see what is read here
            self.versions = [version_of(x) for x in tensors]

    def written(self) -> list[Tensor]:
        """The tensors that the call has changed in place."""
        with torch.DisableTorchFunction():
            return [x for x, before in zip(self.tensors, self.versions, strict=True) if version_of(x) != before]

    def makes(self, output: object) -> bool:
        """True for a call that made a tensor or changed one; `contiguous()` may hand on what it received."""
        with torch.DisableTorchFunction():
            for x in (output,) if isinstance(output, Tensor) else (x for _, x in tree.leaves(output)):
                if x.is_inference() or not any(x is argument for argument in self.tensors):
                    return True
        return bool(self.written())


def function_names(what: Any) -> tuple[str, str]:
    """The short name of a function, and PyTorch's full name of it: `add` and `torch.Tensor.__add__`."""
    if isinstance(what, OPERATORS):  # aten.add.Tensor, or torchvision.nms
        return str(getattr(what, "__name__", what)).split(".")[0], f"torch.ops.{what}"
    if isinstance(what, type):  # an autograd.Function
        return what.__name__, f"{what.__module__}.{what.__qualname__}"
    if not isinstance(what, (FunctionType, BuiltinFunctionType)) and isinstance(getattr(what, "name", None), str):
        return what.name, f"TorchScript {what.name}"
    name = getattr(what, "__name__", type(what).__name__)
    full = str(_known_name()(what) or name).removesuffix(".__get__")
    if full.rpartition(".")[2] != name and getattr(torch, name, None) == what:  # one function of two names: mm and spmm
        full = f"torch.{name}"
    return plain_name(full.rpartition(".")[2]), full


@cache
def _known_name() -> Callable[[Any], str | None]:
    """PyTorch's function for names, without the block around it that has Python forget which warnings it has shown."""
    torch.overrides.resolve_name(torch.add)  # which lists all functions, and warns of some, in that block
    return getattr(torch.overrides.resolve_name, "__wrapped__", torch.overrides.resolve_name)


def type_of(part: object) -> str:
    """The type of a part of a model: the name of a module's class, or an operator's short name."""
    return tree.type_text(part) if isinstance(part, nn.Module) else function_names(part)[0]


def plain_name(name: str) -> str:
    """Name the function that an operator of Python calls: `add` for `__radd__`, `add_` for `__iadd__`."""
    if not (name.startswith("__") and name.endswith("__")):
        return name
    inner = name.strip("_")
    for first, ending in (("r", ""), ("i", "_")):
        if inner.startswith(first) and hasattr(Tensor, f"__{inner[1:]}__"):
            return _SAME.get(inner[1:], inner[1:]) + ending
    return _SAME.get(inner, inner)


_SAME = {"truediv": "div", "floordiv": "floor_divide"}


_ALLOCATE = {
    *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "empty_quantized"),
    *("_empty_affine_quantized", "_empty_per_channel_affine_quantized", "resize_", "resize_as_"),
}
# Functions that may return a copy of what they received.
_COPY = {
    *("clone", "contiguous", "to", "_to_copy", "type", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"),
    *("reshape", "flatten"),
}
_AT_INDEX = ("setitem", "index_put_", "_index_put_impl_")
_ALONG = ("scatter_", "index_copy_", "index_fill_")
_MASKED = ("masked_fill_", "masked_scatter_")


@dataclass(slots=True)
class _Memory:
    """A storage with elements that were not written; without a mask, that is all of them."""

    reference: StorageWeakRef
    itemsize: int
    mask: Tensor | None = None


class UninitialisedMemory:
    """Follows which elements functions have written, from one call to the next."""

    def __init__(self) -> None:
        self._known: dict[int, _Memory] = {}

    def called(
        self, name: str, args: Sequence[object], kwargs: Mapping[str, object], output: object, written: object
    ) -> None:
        """Take in a call that has ended; `written` are the tensors that it changed in place."""
        makes = name in _ALLOCATE or (name == "new" and all(isinstance(n, (int, torch.Size)) for n in args[1:]))
        copies = not makes and name in _COPY and self.within(args[:1])
        with torch.DisableTorchFunction():
            for _, x in tree.leaves(output if makes or copies else written if self._known else None):
                if not (makes or copies):
                    self._wrote(name, [*args[1:], *kwargs.values()], x)
                elif makes or memory_of(x) not in self._known:
                    self._allocated(x)

    def within(self, tensors: object) -> bool:
        """True if an element of these tensors was never written."""
        if not self._known:
            return False
        with torch.DisableTorchFunction():
            return any(self._is_within(x) for _, x in tree.leaves(tensors))

    def _is_within(self, x: Tensor) -> bool:
        memory = self._known.get(memory_of(x))
        if memory is None or not x.numel():
            return False
        if memory.mask is None or x.element_size() != memory.itemsize:
            return True
        return bool(_part(memory.mask, x).any())

    def _allocated(self, x: Tensor) -> None:
        if x.is_inference() or x.device.type == "meta" or not (x.numel() and tree.is_plain(x) and memory_of(x)):
            return  # writes to inference tensors show in no version
        self._known = {key: memory for key, memory in self._known.items() if not memory.reference.expired()}
        self._known[memory_of(x)] = _Memory(StorageWeakRef(x.untyped_storage()), x.element_size())

    def _wrote(self, name: str, arguments: Sequence[object], x: Tensor) -> None:
        """Note a write to a tensor by a function with the arguments `arguments` after the tensor."""
        memory = self._known.get(key := memory_of(x))
        if memory is None:
            return
        at = arguments[name in _ALONG] if name in (*_AT_INDEX, *_ALONG, *_MASKED) else None
        size = x.untyped_storage().nbytes()
        if at is None and x.nbytes == size:
            del self._known[key]
        elif x.element_size() == memory.itemsize and all(index.device.type == "cpu" for _, index in tree.leaves(at)):
            if memory.mask is None:
                with torch.inference_mode(False):
                    memory.mask = torch.ones(size // memory.itemsize, dtype=torch.bool, device="cpu")
            _unmark(_part(memory.mask, x), name, arguments)
            if not memory.mask.any():
                del self._known[key]


def _part(mask: Tensor, x: Tensor) -> Tensor:
    return mask.as_strided(x.size(), x.stride(), x.storage_offset())


def _unmark(part: Tensor, name: str, arguments: Sequence[Any]) -> None:
    """Unmark the elements that a function writes with the arguments `arguments` after the tensor itself."""
    if name == "setitem":
        part[arguments[0]] = False
    elif name in _AT_INDEX:
        part[tuple(slice(None) if index is None else index for index in arguments[0])] = False
    elif name in _ALONG:
        write = part.scatter_ if name == "scatter_" else part.index_fill_
        write(arguments[0], arguments[1], False)
    elif name in _MASKED:
        part.masked_fill_(arguments[0], False)
    else:
        part.fill_(False)
