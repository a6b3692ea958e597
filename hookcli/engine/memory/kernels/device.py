"""Kernels of a device, for operators that run on the meta device: the layouts of results, and the memory inside.

A formula gives the most that a call has in use at any time, in bytes: its results, and copies and buffers that are
released before it returns. Those here are of copies that the kernels of all devices make. Workspaces of libraries
(oneDNN, cuBLAS, cuDNN) are left out: they depend on the library's release and on the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

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


_IN_PLACE = {f"aten._fused_{name}_" for name in ("adam", "adamw", "adagrad", "sgd")}
"""Operators that change their arguments and return nothing; not all have a kernel for the meta device."""
_COPIES: Mapping[str, Formula] = {
    "aten.native_layer_norm": lambda args, out: size(*out) + copied(args[0]),
    "aten.native_layer_norm_backward": _two_copied,
    "aten.native_group_norm_backward": _two_copied,
    "aten.roll": lambda args, out: size(out) * min(len(args[1]), 2),  # one dimension after another
    "aten.max_pool2d_with_indices_backward": lambda args, out: size(out) + copied(args[0], args[1]),
    "aten._softmax_backward_data": _two_copied,
    "aten._log_softmax_backward_data": _two_copied,
}
