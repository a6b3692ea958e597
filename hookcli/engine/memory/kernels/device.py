"""Kernels of a device, for operators that run on the meta device: the layouts of results, and the memory inside.

A formula gives the most that a call has in use at any time, in bytes: its results, and copies and buffers that are
released before it returns. Those here are of copies that the kernels of all devices make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from hookcli.engine.memory.kernels import convolutions

Formula = Callable[[tuple[Any, ...], Any], int]
Choices = Callable[[Callable[[], object]], AbstractContextManager[None]]


def size(*tensors: Any) -> int:
    """The bytes of the elements of these tensors; others than tensors count nothing."""
    return sum(x.numel() * x.element_size() for x in tensors if isinstance(x, Tensor))


def copied(tensor: Tensor, like: Tensor | None = None) -> int:
    """The bytes of a contiguous copy of the tensor (in the layout of `like`), which is made unless it is so already."""
    wanted = convolutions.memory_format(like) if like is not None else torch.contiguous_format
    return 0 if tensor.is_contiguous(memory_format=wanted) else size(tensor)


class DeviceKernels:
    """The kernels of a device, by the formulas of its operators.

    `choices` makes a block in which PyTorch chooses operators as it does for tensors on the device; its argument is
    called where the CPU's attention keeps its weights.
    """

    def __init__(self, formulas: Mapping[str, Formula], choices: Choices) -> None:
        self._formulas = {**COPIES, **formulas}
        self.choices = choices

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator; its results get the strides that the device's kernel gives them."""
        if str(func.overloadpacket) in _IN_PLACE and args[0][0].is_meta:
            return None
        out = func(*args, **kwargs)
        if func is _CONVOLUTION:
            return convolutions.laid_out(out, args)
        if func is _CONVOLUTION_BACKWARD:
            return *(x if x is None else convolutions.laid_out(x, args[1:]) for x in out[:2]), out[2]
        return out

    def workspace(self, func: Any, args: tuple[Any, ...], out: Any) -> int:
        """The bytes that a call has at most in use, results included; 0 if that is no more than its results."""
        formula = self._formulas.get(str(func.overloadpacket))
        return formula(args, out) if formula else 0

    def allocated(self, x: Tensor) -> int:
        """The bytes that the device's allocator hands out for the storage of a tensor."""
        return x.untyped_storage().nbytes()


def norm_backward(args: tuple[Any, ...], out: Any) -> int:
    """Contiguous copies of the gradient and the input."""
    return size(*out) + copied(args[0]) + copied(args[1])


def _softmax_backward(args: tuple[Any, ...], out: Any) -> int:
    return size(out) + copied(args[0]) + copied(args[1])


_CONVOLUTION, _CONVOLUTION_BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
_IN_PLACE = {f"aten._fused_{name}_" for name in ("adam", "adamw", "adagrad", "sgd")}
"""Operators that change their arguments and return nothing; not all have a kernel for the meta device."""
COPIES: Mapping[str, Formula] = {
    "aten.native_layer_norm": lambda args, out: size(*out) + copied(args[0]),
    "aten.native_layer_norm_backward": norm_backward,
    "aten.native_group_norm_backward": norm_backward,
    "aten.roll": lambda args, out: size(out) * min(len(args[1]), 2),  # one dimension after another
    "aten.max_pool2d_with_indices_backward": lambda args, out: size(out) + copied(args[0], args[1]),
    "aten._softmax_backward_data": _softmax_backward,
    "aten._log_softmax_backward_data": _softmax_backward,
}
