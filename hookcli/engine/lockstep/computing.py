"""How a side of a comparison computes: under autocast, by which kernel of attention, or all in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

_KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@contextmanager
def computing(
    device: torch.device, amp: torch.dtype | None = None, attention: str | None = None, *, exact: bool = False
) -> Iterator[None]:
    """Run a model and its loss under autocast to `amp`, `scaled_dot_product_attention` by one kernel, and if `exact`
    all in float64.
    """
    with ExitStack() as stack:
        if amp is not None:
            stack.enter_context(torch.autocast(device.type, amp))
        if attention is not None:
            stack.enter_context(sdpa_kernel(_KERNELS[attention]))
        if exact:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float64)
            stack.enter_context(InFloat64())
        yield


_WIDER = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}
_CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
_REINTERPRET = (torch.Tensor.view, torch.frombuffer)
_RANDOM = (torch.rand, torch.randn, torch.rand_like, torch.randn_like)


class InFloat64(TorchFunctionMode):
    """Has a program compute in float64 where it asks for a lower dtype (`x.float()`, `dtype=torch.float32`).

    Random numbers are drawn as in float32. What runs within `not_widened` is left alone.
    """

    def __torch_function__(self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _paused or func in _REINTERPRET:
            return func(*args, **kwargs)
        if func in _RANDOM:
            return func(*args, **{"dtype": torch.float32, **kwargs}).double()
        wider = [_WIDER.get(arg, arg) if isinstance(arg, torch.dtype) else arg for arg in args]
        kwargs = {key: _WIDER.get(x, x) if isinstance(x, torch.dtype) else x for key, x in kwargs.items()}
        called: Callable[..., Any] = torch.Tensor.double if func in _CASTS else func
        return called(*wider, **kwargs)


_paused: list[None] = []


@contextmanager
def not_widened() -> Iterator[None]:
    """Keep `InFloat64`, and the default dtype that goes with it, from what is not part of the program."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    _paused.append(None)
    try:
        yield
    finally:
        _paused.pop()
        torch.set_default_dtype(before)
