"""Operators on the meta device that keep for backward what other devices keep: attention and dropout; fake tensors."""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hookcli.hooks.torch_private.modules import part_tables
from hookcli.tensors.torch_private import private

_MODULE = "torch._subclasses.fake_tensor"
_NO_PRECISION = "mixed precision is not simulated"


def has_values(x: Tensor) -> bool:
    """True unless the tensor is on the meta device, or fake."""
    fake = getattr(sys.modules.get(_MODULE), "FakeTensor", ())  # not imported: that takes long
    return not x.is_meta and not isinstance(x, fake)


class FakeCpu:
    """A mode in which operators take and make such tensors. `available`: this PyTorch has them."""

    def __init__(self) -> None:
        make = private(_MODULE, "FakeTensorMode", None, _NO_PRECISION)
        self._tensor: Callable[..., Tensor] | None = private(_MODULE, "FakeTensor", None, _NO_PRECISION)
        self.available = make is not None and self._tensor is not None
        self.mode: AbstractContextManager[object] = (
            make(allow_non_fake_inputs=True) if self.available else nullcontext()
        )
        """To be entered once."""

    def tensor(self, meta: Tensor) -> Tensor:
        """A fake tensor in the place of a meta tensor; others stay as they are."""
        if not meta.is_meta or self._tensor is None:
            return meta
        return self._tensor(self.mode, meta.detach(), torch.device("cpu"))

    def convert(self, model: nn.Module) -> None:
        """Replace the parameters and buffers in place; a tied one stays one."""
        made: dict[int, Any] = {id(None): None}
        for table in (table for module in model.modules() for table in part_tables(module)[:2]):
            for name, tensor in table.items():
                if id(tensor) not in made:
                    new = self.tensor(tensor)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if is_parameter else new
                table[name] = made[id(tensor)]


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
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    explicit = attn_mask is not None and is_causal  # an error, which the function itself raises
    chosen = _choose.default.redispatch(_keys(_key.CPU), *arguments, **options) if not explicit else None
    if chosen != _FUSED or query.dim() not in _BATCHED:
        for unfused in _listeners:
            unfused()
        return as_composed("scaled_dot_product_attention", *arguments, **options)
    if attn_mask is not None:
        attn_mask = _as_numbers(attn_mask, query.dtype)
    scale, unbatched = options.get("scale"), query.dim() == _BATCHED[0]
    if unbatched:
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        attn_mask = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.dim() == _BATCHED[0] else attn_mask
    out = fused_attention.default(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return out.squeeze(0) if unbatched else out


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
    kernel = _fused(query, key, value, attn_mask, is_causal)
    if kernel is None:
        arguments = (query, key, value, attn_mask, dropout_p, is_causal)
        return as_composed("scaled_dot_product_attention", *arguments, **options)
    if kernel is flash_attention:
        width = query.shape[-1]
        padded = [functional.pad(x, (0, -width % 8)) if width % 8 else x for x in (query, key, value)]
        scale = scale if scale is not None else 1 / math.sqrt(width)
        out = flash_attention.default(*padded, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :width] if width % 8 else out
    if attn_mask is not None:
        attn_mask, length = _as_numbers(attn_mask, query.dtype), attn_mask.shape[-1]
        if length % _MASK:  # its rows have an aligned length
            attn_mask = functional.pad(attn_mask, (0, -length % _MASK))[..., :length]
        attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    keeps = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    return efficient_attention.default(query, key, value, attn_mask, keeps, dropout_p, is_causal, scale=scale)[0]


def _fused(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Any:
    """The first fused kernel that takes these arguments; None if none does."""
    four = query.dim() == key.dim() == value.dim() == 4
    if has_values(query) or None in (flash_attention, efficient_attention) or not four:
        return None
    width, of_key, of_value = (x.shape[-1] for x in (query, key, value))
    half = query.dtype in _HALVES
    narrow = width == of_key == of_value <= _WIDEST
    if torch.backends.cuda.flash_sdp_enabled() and attn_mask is None and half and narrow:
        return flash_attention
    alignment = 8 if half else 4
    aligned = width == of_key and width % alignment == of_value % alignment == 0
    supported = query.dtype in (*_HALVES, torch.float32) and (attn_mask is None or not is_causal)
    enabled = torch.backends.cuda.mem_efficient_sdp_enabled()
    return efficient_attention if enabled and aligned and supported else None


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers that are added to the scores."""
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), -math.inf)


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout that keeps a mask of one byte per number, where the CPU keeps numbers."""
    if train and 0 < p < 1 and x.numel() and not has_values(x):
        return torch.native_dropout(x, p, train)[0]
    dropped: Tensor = as_composed("dropout", x, p, train)
    return dropped
