"""Memory of PyTorch's CUDA kernels, and of the caching allocator that hands it out.

The formulas follow aten/src/ATen/native/transformers/cuda/ (torch 2.15); the rounding is that of the allocator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.engine.memory.kernels.device import DeviceKernels, size
from hookcli.hooks.torch_private.cuda_operators import operators_as_on_cuda

_BLOCK = 512
"""The allocator hands out multiples of so many bytes (c10/cuda/CUDACachingAllocator.h, kMinBlockSize)."""


class CudaKernels(DeviceKernels):
    """The kernels of a GPU of compute capability 8.0 or newer.

    `real`: the model runs for real, on the CPU; `fake`: on tensors that say so. Otherwise those on the CPU take none of
    the GPU's memory, as an optimizer's step counts.
    """

    def __init__(self, real: bool, fake: bool) -> None:
        super().__init__(_FORMULAS, lambda unfused: operators_as_on_cuda(fake and not real))
        self._real = real
        self._all = real or fake

    def allocated(self, x: Tensor) -> int:
        """The bytes of the allocator's block for the storage of a tensor; 0 for one that stays on the CPU."""
        nbytes = x.untyped_storage().nbytes()
        return _padded(nbytes, _BLOCK) if self._all or x.device.type != "cpu" else 0

    def remarks(self, model: nn.Module) -> Iterator[str]:
        """Sentences on memory that the figures of a model leave out."""
        yield "computed for a GPU of compute capability 8.0 or newer"
        yield "not included: workspaces of cuBLAS and cuDNN, fragmentation, and the CUDA context"
        if self._real:
            yield "attention and dropout were those of the CPU, which may keep more"
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            yield "recurrent layers were computed step by step, as on the CPU; cuDNN keeps less"


def _flash_backward(args: tuple[Any, ...], out: Any) -> int:
    """The query's gradient in float32, a number per query, and the keys' and values' gradients of each query head."""
    query: Tensor = args[1]
    key: Tensor = args[2]
    batch, heads, length, width = query.shape
    rows, columns = _padded(length, 128), _padded(width, 32 if width <= 128 else 64)
    expanded = 2 * size(key) * heads // key.shape[1] if key.shape[1] != heads else 0
    return size(*out) + 4 * batch * heads * rows * (columns + 1) + expanded


def _efficient_backward(args: tuple[Any, ...], out: Any) -> int:
    """A number per query; in half precision also the query's gradient in float32."""
    query: Tensor = args[1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    return size(*out) + 4 * (query.numel() // query.shape[-1] + (query.numel() if half else 0))


def _padded(length: int, multiple: int) -> int:
    """The next multiple."""
    return -(-length // multiple) * multiple


_FORMULAS = {
    "aten._scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten._scaled_dot_product_efficient_attention_backward": _efficient_backward,
}
