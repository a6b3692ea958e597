"""How a side of a comparison computes: under autocast, and by which kernel of attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

_KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


@contextmanager
def computing(device: torch.device, amp: torch.dtype | None = None, attention: str | None = None) -> Iterator[None]:
    """Run a model and its loss under autocast to `amp`, and `scaled_dot_product_attention` by one kernel."""
    with ExitStack() as stack:
        if amp is not None:
            stack.enter_context(torch.autocast(device.type, amp))
        if attention is not None:
            stack.enter_context(sdpa_kernel(_KERNELS[attention]))
        yield
