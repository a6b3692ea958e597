"""Operators on the meta device that PyTorch computes by other operators on CUDA, which keep other tensors for backward.

The choices are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and Dropout.cpp (torch 2.15), for a GPU of
compute capability 8.0 or newer. None is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hookcli.hooks.torch_private.attention import as_composed, efficient_attention, flash_attention, registered
from hookcli.hooks.torch_private.fake_tensors import has_values

_HALVES = (torch.float16, torch.bfloat16)
_WIDEST = 256
"""The most channels per head of flash attention."""
_MASK = 16
"""The mask's rows are padded to a multiple of so many numbers."""


_FLOAT32 = (
    *("layer_norm", "group_norm", "cosine_similarity", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "exp", "log", "log1p"),
    *("rsqrt", "reciprocal", "softplus", "norm.Scalar", "norm.ScalarOpt_dim", "logsumexp", "cdist", "nll_loss_nd"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "binary_cross_entropy_with_logits"),
)
"""Operators that autocast computes in float32 on CUDA (aten/src/ATen/autocast_mode.h)."""
_TO_FLOAT32 = ("softmax.int", "log_softmax.int", "sum", "sum.dim_IntList", "cumsum", "prod")
"""Operators whose result is float32 under autocast on CUDA, whatever the dtype of their arguments."""


@contextmanager
def operators_as_on_cuda(fake: bool) -> Iterator[None]:
    """Compute attention and dropout of meta tensors as on CUDA in this block.

    `fake`: of fake CPU tensors; autocast then takes the precision that it takes on CUDA.
    """
    key = "AutogradCPU" if fake else "AutogradMeta"
    with ExitStack() as stack:
        stack.enter_context(registered({"scaled_dot_product_attention": _attention, "dropout": _dropout}, (key,)))
        if fake:
            casts = {name: _cast(name, False) for name in _FLOAT32} | {name: _cast(name, True) for name in _TO_FLOAT32}
            stack.enter_context(registered(casts, ("AutocastCPU",)))
        yield


def _cast(name: str, result: bool) -> Callable[..., object]:
    """An operator that casts its arguments to float32, or only its result, under autocast of fake tensors."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def cast(x: object) -> object:
        return x.float() if isinstance(x, Tensor) and x.dtype in _HALVES and not has_values(x) else x

    def call(*args: Any, **options: object) -> object:
        with torch.autocast("cpu", enabled=False):
            if not result:
                return operator(*map(cast, args), **{key: cast(x) for key, x in options.items()})
            if args[0].dtype in _HALVES and not has_values(args[0]) and options.get("dtype") is None and len(args) < 3:
                options["dtype"] = torch.float32
            return operator(*args, **options)

    return call


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: object,
) -> object:
    """Attention by the first kernel that takes these arguments; cuDNN's keeps what flash attention does."""
    scale = options.get("scale")
    fused = not has_values(query) and None not in (flash_attention, efficient_attention)
    fused = fused and query.dim() == key.dim() == value.dim() == 4
    if fused and attn_mask is None and _suits_flash(query, key, value):
        width = query.shape[-1]
        padded = [functional.pad(x, (0, -width % 8)) if width % 8 else x for x in (query, key, value)]
        scale = scale if scale is not None else 1 / math.sqrt(width)
        out = flash_attention.default(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :width] if width % 8 else out
    if fused and not (attn_mask is not None and is_causal) and _suits_efficient(query, key, value):
        mask = _bias(attn_mask, query, key) if attn_mask is not None else None
        keeps = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        return efficient_attention.default(query, key, value, mask, keeps, dropout_p, is_causal, scale=scale)[0]
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    return as_composed("scaled_dot_product_attention", *given, **options)


def _suits_flash(query: Tensor, key: Tensor, value: Tensor) -> bool:
    same = query.shape[-1] == key.shape[-1] == value.shape[-1] <= _WIDEST
    return torch.backends.cuda.flash_sdp_enabled() and same and query.dtype in _HALVES


def _suits_efficient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    alignment = 8 if query.dtype in _HALVES else 4
    aligned = query.shape[-1] == key.shape[-1] and not (query.shape[-1] % alignment or value.shape[-1] % alignment)
    supported = query.dtype in (*_HALVES, torch.float32)
    return torch.backends.cuda.mem_efficient_sdp_enabled() and aligned and supported


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask as numbers that are added to the weights, in rows of aligned length."""
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    length = mask.shape[-1]
    if length % _MASK:
        mask = functional.pad(mask, (0, -length % _MASK))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout that keeps a mask of one byte per number, where the CPU keeps numbers."""
    if train and 0 < p < 1 and x.numel() and not has_values(x):
        return torch.native_dropout(x, p, train)[0]
    dropped: Tensor = as_composed("dropout", x, p, train)
    return dropped
