"""Tensors of PyTorch, in memory or in a checkpoint, read block by block as those in other files are."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookcli.errors import UsageError, class_name, in_brief
from hookcli.system.files import opened, regular
from hookcli.table.formatting import counted
from hookcli.tensors.chunks import dequantized, unnested
from hookcli.tensors.files.stored import CODINGS, Array, StoredTensor, TensorFile
from hookcli.tensors.tree import dtype_text

_VIEWED = {1: torch.uint8, 2: torch.uint16}


def stored(name: str, tensor: Tensor, **described: Any) -> StoredTensor:
    """The tensor under this name; `described` are further fields of StoredTensor."""
    tensor = unnested(tensor.detach()) if tensor.is_nested else tensor.detach()
    dtype, coding, unreadable = dtype_text(tensor), "", ""
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    if tensor.is_meta:
        unreadable = "on the meta device: it has no values"
    elif plain and dtype not in CODINGS and dtype != "complex32":
        unreadable = f"values of {dtype} can't be read"
    else:
        coding = dtype if plain and dtype in CODINGS else "complex64" if tensor.is_complex() else "float32"
    nbytes = tensor.numel() * tensor.element_size()
    if hasattr(tensor, "__tensor_flatten__"):  # a class that wraps the tensors that take memory, as torchao's do
        nbytes = sum(getattr(tensor, name).nbytes for name in tensor.__tensor_flatten__()[0])
    elif tensor.layout is not torch.strided and not tensor.is_meta:  # what it stores, and the indices
        sparse = tensor.to_sparse_coo().coalesce()
        nbytes = int(sparse.values().nbytes + sparse.indices().nbytes)
    described = {"file": "", "coding": coding, "unreadable": unreadable, **described}
    return StoredTensor(name, tuple(tensor.shape), dtype, nbytes, blocks=partial(_blocks, tensor, coding), **described)


def _blocks(tensor: Tensor, coding: str, size: int) -> Iterator[Array]:
    """The elements in order, coded as `coding` says."""
    tensor = dequantized(tensor)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense().float()
    if tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    tensor = tensor.resolve_conj().resolve_neg().cpu()
    if CODINGS[coding].table:
        tensor = tensor.contiguous().view(_VIEWED[tensor.element_size()])
    for block in tensor.reshape(-1).split(size):
        if block.numel():
            yield block.contiguous().numpy()  # a vector may be one column of a matrix


STATE_DICTS = ("state_dict", "model_state_dict", "model")
"""Keys under which checkpoints keep the state dict of the model."""
_DEEPEST = 20  # levels of dicts and lists


def read(file: Path) -> TensorFile:
    """The tensors of a checkpoint: those of its state dict if it has one under a known key, else all of them.

    Raises UsageError for a file that torch.save did not write, or that holds no tensor.
    """
    whole = load(file)
    key, state = _state_dict(whole)
    tensors = list(_named(state))
    if not tensors:
        raise UsageError(f"{file}: holds no tensors, but an object of type {class_name(whole)}")
    others = sum(1 for _ in _named(whole)) - len(tensors)
    beside = f"; {counted(others, 'other tensor')} in the file" if others else ""
    notes = [f"{file.name}: the state dict under {key!r}{beside}"] if key else []
    first: dict[object, str] = {}
    stored_tensors = []
    for name, tensor in tensors:  # one that is the same memory as another before is marked as tied to it
        plain = tensor.layout is torch.strided and tensor.numel() and tensor.device.type == "cpu"
        owner = first.setdefault((tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if plain else name, name)
        stored_tensors.append(stored(name, tensor, file=file.name, tied=owner if owner != name else ""))
    return TensorFile(str(file), "torch.save", stored_tensors, notes=notes)


def load(file: Path) -> object:
    """The object in a file of torch.save, on the CPU. Raises UsageError for another file, or one that could run code.

    Files of PyTorch before 1.6 can't be memory-mapped, and are read whole.
    """
    try:
        with opened(file) as begin:
            mapped = begin.read(4) == b"PK\x03\x04"
        return torch.load(regular(file), map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # a file that is no checkpoint makes the unpickler fail in many ways
        unpickling = isinstance(error, pickle.UnpicklingError)  # PyTorch adds the advice to trust the file
        if unpickling and "global" in str(error).lower():
            refused = "refused, since loading it could run code (torch.load with weights_only=True)"
            raise UsageError(f"{file}: {refused}: save model.state_dict() instead") from error
        why = "" if unpickling else f" ({in_brief(error)})"
        raise UsageError(f"{file}: was not written by torch.save, or is damaged{why}") from error


def _state_dict(whole: Any) -> tuple[str, object]:
    """The key under which a checkpoint has a state dict, and that; "" and the whole where it has none."""
    for key in STATE_DICTS if isinstance(whole, Mapping) else ():
        if isinstance(whole.get(key), Mapping) and any(isinstance(item, Tensor) for item in whole[key].values()):
            return key, whole[key]
    return "", whole


def _named(value: object, name: str | None = None, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested dicts and lists, by their keys joined with dots."""
    if isinstance(value, Tensor):
        yield "tensor" if name is None else name, value
    if depth == _DEEPEST:
        return
    items: Any = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        items = enumerate(value)
    for key, item in items:
        yield from _named(item, str(key) if name is None else f"{name}.{key}", depth + 1)
