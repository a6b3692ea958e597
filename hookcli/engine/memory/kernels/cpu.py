"""Memory that PyTorch's CPU kernels use inside of themselves, by operator.

The formulas, with those of convolutions in `convolutions`, follow aten/src/ATen/native/ (torch 2.15), compared with
PyTorch's profiler by `scripts/sweep memory`. Buffers of a few rows per thread are left out.
"""

from __future__ import annotations

from typing import Any

import torch

from hookcli.engine.memory.kernels import convolutions
from hookcli.engine.memory.kernels.device import DeviceKernels, norm_backward, size
from hookcli.hooks.torch_private.attention import attention_as_on_cpu


def cpu_kernels() -> DeviceKernels:
    """The kernels of the CPU."""
    return DeviceKernels(_FORMULAS, attention_as_on_cpu)


def _batch_norm_backward(args: tuple[Any, ...], out: Any) -> int:
    """A copy of `grad_out` in the layout of the input, or a buffer of its size (batch_norm_cpu_backward)."""
    return size(*out) + size(args[0])


def _layer_norm_backward(args: tuple[Any, ...], out: Any) -> int:
    """Per thread a row of each gradient of the parameters, besides the copies."""
    return norm_backward(args, out) + 2 * torch.get_num_threads() * size(args[5])


def _dropout(args: tuple[Any, ...], out: Any) -> int:
    return size(*out) + size(args[0])


def _attention_backward(args: tuple[Any, ...], out: Any) -> int:
    """A copy of `grad_out` where it is not laid out as the output is (_flash_attention_backward)."""
    grad, output = args[0], args[4]
    return size(*out) + (size(grad) if grad.stride() != output.stride() else 0)


_FORMULAS = {
    "aten.convolution": convolutions.forward,
    "aten.convolution_backward": convolutions.backward,
    "aten.native_batch_norm_backward": _batch_norm_backward,
    "aten.native_layer_norm_backward": _layer_norm_backward,
    "aten.native_dropout": _dropout,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
