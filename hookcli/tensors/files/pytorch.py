"""Tensors of PyTorch, in memory or in a checkpoint, read block by block as those in other files are."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hookcli.errors import UsageError, class_name, in_brief
from hookcli.system.files import opened, regular
from hookcli.table.formatting import counted
from hookcli.tensors.chunks import dequantized, unnested
from hookcli.tensors.files.checkpoints import content, entries
from hookcli.tensors.files.file_kinds import kind_of
from hookcli.tensors.files.plain_objects import StandIn, with_stand_ins
from hookcli.tensors.files.stored import CODINGS, Array, StoredTensor, TensorFile
from hookcli.tensors.files.torchscript import Held, is_torchscript, read_torchscript
from hookcli.tensors.tree import dtype_text

_VIEWED = {1: torch.uint8, 2: torch.uint16}


def stored(name: str, tensor: Tensor, **described: Any) -> StoredTensor:
    """The tensor under this name; `described` are further fields of StoredTensor."""
    if not tensor.is_quantized:  # which has no graph, and may hold what its memory belongs to
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


def read(file: Path) -> TensorFile:
    """The tensors of the model in a checkpoint (see `checkpoints.content`), or of a TorchScript archive.

    Raises UsageError for a file that neither torch.save nor torch.jit.save wrote, or that holds no tensor.
    """
    if is_torchscript(file):
        held = read_torchscript(file)
        kinds = Counter(one.kind for one in held)
        note = ", ".join(counted(number, kind) for kind, number in kinds.items()) or "no tensors"
        return TensorFile(str(file), "TorchScript", _stored(file, held), notes=[f"{file.name}: {note}"])
    whole = _load_saved(file)
    checkpoint = content(whole)
    if not checkpoint.tensors:
        arrays = any(isinstance(one.value, StandIn) and one.value.is_array for one in entries(whole))
        held_object = "NumPy arrays, which are not read" if arrays else f"an object of type {class_name(whole)}"
        raise UsageError(f"{file}: holds no tensors, but {held_object}")
    notes = [f"{file.name}: {checkpoint.remark}"] if checkpoint.remark else []
    held = [Held(name, tensor, "", "") for name, tensor in checkpoint.tensors.items()]
    return TensorFile(str(file), "torch.save", _stored(file, held), notes=notes)


def _stored(file: Path, held: Sequence[Held]) -> list[StoredTensor]:
    """The tensors of a file; one in the same memory as another before is marked as tied to it."""
    first: dict[object, str] = {}
    stored_tensors = []
    for name, tensor, kind, owner in held:
        plain = tensor.layout is torch.strided and tensor.numel() and tensor.device.type == "cpu"
        before = first.setdefault((tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if plain else name, name)
        tied = before if before != name else ""
        stored_tensors.append(stored(name, tensor, file=file.name, tied=tied, kind=kind, type=owner))
    return stored_tensors


def load(file: Path) -> object:
    """The object in a file of torch.save, or the tensors of a TorchScript archive by name, on the CPU.

    Raises UsageError for another file, or one that could run code.

    Files of PyTorch before 1.6 can't be memory-mapped, and are read whole.
    """
    if is_torchscript(file):
        held = read_torchscript(file)
        return {one.name: one.tensor for one in [x for x in held if x.kind != "constant"] or held}
    return _load_saved(file)


def _load_saved(file: Path) -> object:
    """The object in a file of torch.save. Raises UsageError as `load` does."""
    if kind := kind_of(file):
        raise UsageError(f"{file} is {kind}")
    try:
        return _load(file)
    except Exception as error:  # a file that is not a checkpoint makes the unpickler fail in many ways
        unpickling = isinstance(error, pickle.UnpicklingError)  # PyTorch adds the advice to trust the file
        if unpickling and "global" in str(error).lower():
            refused = "refused, since loading it could run code (torch.load with weights_only=True)"
            raise UsageError(f"{file}: {refused}: save model.state_dict() instead") from error
        if not file.stat().st_size:
            raise UsageError(f"{file} is empty (0 bytes)") from error
        # an unpickler that meets other bytes raises what they happen to mean: KeyError: 101
        why = "" if unpickling or isinstance(error, (LookupError, EOFError)) else f" ({in_brief(error)})"
        raise UsageError(f"{file}: was not written by torch.save, or is damaged{why}") from error


def _load(file: Path) -> object:
    with opened(file) as begin:
        mapped = begin.read(4) == b"PK\x03\x04"

    def load_plain() -> object:
        return torch.load(regular(file), map_location="cpu", weights_only=True, mmap=mapped)

    try:
        return load_plain()
    except pickle.UnpicklingError:
        if not mapped:
            raise
        with with_stand_ins(regular(file)) as any_refused:
            if not any_refused:
                raise
            return load_plain()
