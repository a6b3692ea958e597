"""Memory that PyTorch's CPU kernels use inside of themselves, by operator.

The formulas follow aten/src/ATen/native/ (torch 2.15). Buffers of a few rows per thread are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

from hookcli.engine.memory.kernels.device import DeviceKernels, copied, size
from hookcli.hooks.torch_private.attention import attention_as_on_cpu
from hookcli.hooks.torch_private.fake_tensors import has_values
from hookcli.hooks.torch_private.overrides import without_dispatch_modes

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
_MOST = 32
"""oneDNN is asked for the workspace of at most so many steps and sequences: it grows in proportion beyond."""


class CpuKernels(DeviceKernels):
    """The kernels of the CPU."""

    def __init__(self) -> None:
        super().__init__(_FORMULAS, attention_as_on_cpu)

    def call(self, func: object, args: tuple[Any, ...], kwargs: dict[str, object]) -> Any:
        """See DeviceKernels. An LSTM's workspace is one of its results, of which fake tensors don't know the size."""
        out = super().call(func, args, kwargs)
        if func is not _LSTM or has_values(args[0]) or not torch.is_grad_enabled():
            return out
        x, hidden, biases, batch_first = args[0], args[5].shape[-1], args[12], args[14]
        sizes = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
        with without_dispatch_modes():
            nbytes = _workspace(sizes, x.shape[2], hidden, x.dtype, biases)
        return *out[:3], out[3].new_empty(nbytes)

    def remarks(self, model: nn.Module) -> Iterator[str]:
        """Sentences on memory that the figures of a model leave out."""
        if any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
            yield (
                "not included: memory that oneDNN takes while it computes a convolution and releases at once; in "
                "training, measured peaks of 100 models were up to 22% higher, half of them by less than 0.4%"
            )
        if any(isinstance(module, nn.LSTM) and not module.proj_size for module in model.modules()):
            yield (
                "not included: memory that oneDNN takes while it computes an LSTM and releases at once; measured peaks "
                "were up to a third higher in training, and up to three times as high in inference"
            )


@cache
def _workspace(sizes: tuple[int, int], width: int, hidden: int, dtype: torch.dtype, biases: bool) -> int:
    """The bytes that oneDNN keeps for the backward of an LSTM's layer in one direction, by its steps and sequences."""
    steps, sequences = sizes
    if max(sizes) > _MOST:
        fewer = [(n, sequences) if steps > _MOST else (steps, n) for n in (_MOST // 2, _MOST)]
        half, most = (_workspace(asked, width, hidden, dtype, biases) for asked in fewer)
        return most + (most - half) * ((steps if steps > _MOST else sequences) - _MOST) * 2 // _MOST
    x = torch.zeros(steps, sequences, width, dtype=dtype)
    weights = [torch.zeros(4 * hidden, n, dtype=dtype) for n in (width, hidden)]
    bias = [torch.zeros(4 * hidden, dtype=dtype) for _ in range(2)]
    state = torch.zeros(1, sequences, hidden, dtype=dtype)
    arguments = (x, *weights, *bias, state, state, False, [], 2, hidden, 1, biases, False, False, True)
    return int(_LSTM(*arguments)[3].nbytes)


def _batch_norm_backward(args: tuple[Any, ...], out: Any) -> int:
    """The input's gradient is allocated twice where the gradient and the input are laid out alike."""
    grad, x, wanted = args[0], args[1], args[-1]
    alike = not copied(grad, x) and not copied(x, grad)
    return size(*out) + (size(x) if wanted[0] and alike else 0)


def _attention_backward(args: tuple[Any, ...], out: Any) -> int:
    """A copy of `grad_out` where it is not laid out as the output is (_flash_attention_backward)."""
    grad, output = args[0], args[4]
    return size(*out) + (size(grad) if grad.stride() != output.stride() else 0)


_FORMULAS = {
    "aten.native_batch_norm_backward": _batch_norm_backward,
    "aten.native_dropout": lambda args, out: size(*out) + size(args[0]),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
