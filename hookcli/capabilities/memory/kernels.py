"""Memory that the kernels of a device use inside of themselves, and the layouts that they give their results.

A formula gives the most that a call has in use at any time, in bytes: its results, and copies and buffers that are
released before it returns. Workspaces of libraries (oneDNN, cuBLAS, cuDNN) are left out: they depend on the library's
release and on the processor. So are buffers of a few rows per thread. The formulas follow aten/src/ATen/native/ (torch
2.15), the rounding is done as by CUDA's caching allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from hookcli.hooks.storage_lifetimes import cuda_block
from hookcli.hooks.torch_private.meta_operators import attention_as_on_cpu, has_values, operators_as_on_cuda
from hookcli.hooks.torch_private.modules import Convolution
from hookcli.hooks.torch_private.overrides import without_dispatch_modes

Formula = Callable[[tuple[Any, ...], Any], int]
Choices = Callable[[Callable[[], object]], AbstractContextManager[None]]


class DeviceKernels:
    """The kernels of a device, by the formulas of its operators.

    `choices` makes a block in which PyTorch chooses operators as it does for tensors on the device; its argument is
    called where the CPU's attention keeps its weights.
    """

    def __init__(self, formulas: Mapping[str, Formula], choices: Choices) -> None:
        self._formulas = {**_COPIES, **formulas}
        self.choices = choices

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> Any:
        """Call the operator; its results get the strides that the device's kernel gives them."""
        if str(func.overloadpacket) in _IN_PLACE and args[0][0].is_meta:
            return None
        out = func(*args, **kwargs)
        if func is torch.ops.aten.convolution.default and out.is_meta:
            last = next((f for f in map(_memory_format, args[:2]) if f is not torch.contiguous_format), None)
            return out if last is None else torch.empty_like(out, memory_format=last)
        return out

    def workspace(self, func: Any, args: tuple[object, ...], out: object) -> int:
        """The bytes that a call has at most in use, results included; 0 if that is no more than its results."""
        formula = self._formulas.get(str(func.overloadpacket))
        return formula(args, out) if formula else 0

    def allocated(self, x: Tensor) -> int:
        """The bytes that the device's allocator hands out for the storage of a tensor."""
        return x.untyped_storage().nbytes()


def size(*tensors: Any) -> int:
    """The bytes of the elements of these tensors; others than tensors count nothing."""
    return sum(x.numel() * x.element_size() for x in tensors if isinstance(x, Tensor))


def copied(tensor: Tensor, like: Tensor | None = None) -> int:
    """The bytes of a contiguous copy of the tensor (in the layout of `like`), which is made unless it is so already."""
    wanted = _memory_format(like) if like is not None else torch.contiguous_format
    return 0 if tensor.is_contiguous(memory_format=wanted) else size(tensor)


def _memory_format(x: Tensor) -> torch.memory_format:
    """Channels-last if the tensor is so and not contiguous as well."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous():
        return last
    return torch.contiguous_format


def _two_copied(args: tuple[Any, ...], out: object) -> int:
    """Contiguous copies of the gradient and of the input, or the result that is kept in its place."""
    results = out if isinstance(out, tuple) else (out,)
    return size(*results) + copied(args[0]) + copied(args[1])


def _matrices_copied(args: tuple[Any, ...], out: object) -> int:
    """Copies of matrices that BLAS can't take as they are, in rows or in columns: a loss's sum has an expanded one."""
    bytes_copied = 0
    for x in args[-2:]:
        (rows, columns), (down, across) = x.shape, x.stride()
        in_rows = across == 1 and down >= max(columns, 1)
        in_columns = down == 1 and across >= max(rows, 1)
        if not in_rows and not in_columns:
            bytes_copied += size(x)
    return size(out) + bytes_copied


_IN_PLACE = {f"aten._fused_{name}_" for name in ("adam", "adamw", "adagrad", "sgd")}
"""Operators that change their arguments and return nothing; not all have a kernel for the meta device."""
_COPIES: Mapping[str, Formula] = {
    "aten.mm": _matrices_copied,
    "aten.addmm": _matrices_copied,
    "aten.native_layer_norm": lambda args, out: size(*out) + copied(args[0]),
    "aten.native_layer_norm_backward": _two_copied,
    "aten.native_group_norm_backward": _two_copied,
    "aten.roll": lambda args, out: size(out) * min(len(args[1]), 2),  # one dimension after another
    "aten.max_pool2d_with_indices_backward": lambda args, out: size(out) + copied(args[0], args[1]),
    "aten._softmax_backward_data": _two_copied,
    "aten._log_softmax_backward_data": _two_copied,
}


_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
_MOST = 32
"""oneDNN is asked for the workspace of at most so many steps and sequences: it grows in proportion beyond."""


class CpuKernels(DeviceKernels):
    """The kernels of the CPU."""

    def __init__(self) -> None:
        super().__init__(_ON_CPU, attention_as_on_cpu)

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
        if any(isinstance(module, Convolution) for module in model.modules()):
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


_ON_CPU = {
    "aten.native_batch_norm_backward": _batch_norm_backward,
    "aten.native_dropout": lambda args, out: size(*out) + size(args[0]),
    # A copy of `grad_out` where it is not laid out as the output is (_flash_attention_backward).
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": lambda args, out: (
        size(*out) + (size(args[0]) if args[0].stride() != args[4].stride() else 0)
    ),
}


OUTSIDE = "not included: workspaces of cuBLAS and cuDNN, fragmentation, and the CUDA context"


class CudaKernels(DeviceKernels):
    """The kernels of a GPU of compute capability 8.0 or newer.

    `real`: the model runs for real, on the CPU; `fake`: on tensors that say so. Otherwise those on the CPU take none of
    the GPU's memory, as an optimizer's step counts.
    """

    def __init__(self, real: bool, fake: bool) -> None:
        super().__init__(_ON_CUDA, lambda unfused: operators_as_on_cuda(fake and not real))
        self._real = real
        self._all = real or fake

    def allocated(self, x: Tensor) -> int:
        """The bytes of the allocator's block for the storage of a tensor; 0 for one that stays on the CPU."""
        return cuda_block(x) if self._all or x.device.type != "cpu" else 0

    def remarks(self, model: nn.Module) -> Iterator[str]:
        """Sentences on memory that the figures of a model leave out."""
        yield "computed for a GPU of compute capability 8.0 or newer"
        yield OUTSIDE
        if self._real:
            yield "attention and dropout ran as on the CPU, which may keep more"
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


def _padded(length: int, multiple: int) -> int:
    """The next multiple."""
    return -(-length // multiple) * multiple


_ON_CUDA = {
    "aten._scaled_dot_product_flash_attention_backward": _flash_backward,
    # A number per query; in half precision also the query's gradient in float32.
    "aten._scaled_dot_product_efficient_attention_backward": lambda args, out: (
        size(*out)
        + 4 * (args[1].numel() // args[1].shape[-1])
        + (4 * args[1].numel() if args[1].dtype in (torch.float16, torch.bfloat16) else 0)
    ),
}
