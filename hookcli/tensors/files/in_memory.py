"""Tensors of PyTorch, read block by block as those in files are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hookcli.tensors.chunks import unnested
from hookcli.tensors.files.codings import CODINGS, Array
from hookcli.tensors.files.stored import StoredTensor
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
    if tensor.layout is not torch.strided and not tensor.is_meta:  # what it stores, and the indices
        sparse = tensor.to_sparse_coo().coalesce()
        nbytes = int(sparse.values().nbytes + sparse.indices().nbytes)
    described = {"file": "", "coding": coding, "unreadable": unreadable, **described}
    return StoredTensor(name, tuple(tensor.shape), dtype, nbytes, blocks=partial(_blocks, tensor, coding), **described)


def _blocks(tensor: Tensor, coding: str, size: int) -> Iterator[Array]:
    """The elements in order, coded as `coding` says."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
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
