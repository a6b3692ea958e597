"""Attention on the meta device by the kernels of the CPU.

`scaled_dot_product_attention` chooses a kernel by the device, and what it saves for backward depends on that: the CPU's
fused kernel saves a number per query, while the meta device has the plain formula alone, which saves every weight.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from hookcli.tensors.torch_private import private

_LOST = "on the meta device attention keeps its weights for backward, which fused kernels of other devices don't"
_choose = private("torch.ops.aten", "_fused_sdp_choice", None, _LOST)
fused_attention = private("torch.ops.aten", "_scaled_dot_product_flash_attention_for_cpu", None, _LOST)
"""The CPU's fused kernel; None if this PyTorch has none."""
_LOST_CUDA = "memory of CUDA is simulated without fused attention, and is too high"
flash_attention = private("torch.ops.aten", "_scaled_dot_product_flash_attention", None, _LOST_CUDA)
efficient_attention = private("torch.ops.aten", "_scaled_dot_product_efficient_attention", None, _LOST_CUDA)
"""The fused kernels of CUDA; None if this PyTorch has none."""
_library = private("torch.library", "_scoped_library", None, _LOST)
_keys = private("torch._C", "DispatchKeySet", None, _LOST)
_key = private("torch._C", "DispatchKey", None, _LOST)
_FUSED = 1  # torch.nn.attention.SDPBackend.FLASH_ATTENTION, in an import of 0.1 s
_BATCHED = (3, 4)  # dimensions of a query that the fused kernel takes

_lock = threading.Lock()
_replacement: ExitStack | None = None
_listeners: list[Callable[[], object]] = []


@contextmanager
def attention_as_on_cpu(unfused: Callable[[], object]) -> Iterator[None]:
    """Compute attention of meta tensors by the CPU's choice of kernels in this block.

    `unfused` is called where that is the plain formula, which saves the weights, as with dropout.
    """
    global _replacement
    with _lock:
        _listeners.append(unfused)
        if _replacement is None:
            has_all = None not in (_choose, fused_attention)
            kernels = {"scaled_dot_product_attention": _as_on_cpu} if has_all else {}
            _replacement = registered(kernels, ("AutogradMeta",))
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(unfused)
            if not _listeners:
                _replacement.close()
                _replacement = None


def registered(kernels: Mapping[str, Callable[..., object]], keys: Sequence[str]) -> ExitStack:
    """Register kernels of composed operators, by name, for these dispatch keys, until the stack is closed.

    Nothing is registered where this PyTorch lacks a part, or another has registered a kernel.
    """
    stack = ExitStack()
    if None not in (_library, _keys, _key):
        with warnings.catch_warnings(action="ignore"):
            library = stack.enter_context(_library("aten", "IMPL"))
            try:
                for name, kernel in kernels.items():
                    for key in keys:
                        library.impl(name, kernel, key)
            except RuntimeError:  # the program has already registered a kernel
                stack.close()
    return stack


def as_composed(name: str, *args: object, **options: object) -> Any:
    """Call a composed operator as PyTorch composes it, around a kernel that is registered for its tensors."""
    return getattr(torch.ops.aten, name).default.redispatch(_keys(_key.AutogradLazy), *args, **options)


def _as_on_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: object,
) -> object:
    """Attention as PyTorch's C++ function computes it on the CPU."""
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    explicit = attn_mask is not None and is_causal  # an error, which the function itself raises
    chosen = _choose.default.redispatch(_keys(_key.CPU), *given, **options) if not explicit else None
    if chosen != _FUSED or query.dim() not in _BATCHED:
        for unfused in _listeners:
            unfused()
        return as_composed("scaled_dot_product_attention", *given, **options)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), -math.inf)
    scale, unbatched = options.get("scale"), query.dim() == _BATCHED[0]
    if unbatched:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        attn_mask = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.dim() == _BATCHED[0] else attn_mask
    out = fused_attention.default(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return out.squeeze(0) if unbatched else out
