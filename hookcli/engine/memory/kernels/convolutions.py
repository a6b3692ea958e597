"""Memory inside of convolutions on the CPU, which oneDNN computes in its own layouts.

PyTorch (aten/src/ATen/native/mkldnn/Conv.cpp) hands the tensors to oneDNN, which copies them into blocks of channels,
padded to the width of a vector, and the result back; channels-last tensors are taken as they are. Layouts and buffers
are those of oneDNN 3.13, as ONEDNN_VERBOSE=1 shows them on AVX-512.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor


def memory_format(x: Tensor) -> torch.memory_format:
    """Channels-last if the tensor is so and not contiguous as well."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is not None and x.is_contiguous(memory_format=last) and not x.is_contiguous():
        return last
    return torch.contiguous_format


@dataclass(frozen=True)
class Convolution:
    """The arguments of a convolution."""

    x: Tensor
    weight: Tensor
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    groups: int

    @cached_property
    def by_onednn(self) -> bool:
        """True if oneDNN computes it (ConvParams::use_mkldnn); otherwise PyTorch's own kernel does."""
        x, kernel = self.x, self.weight.shape[2:]
        if x.dtype in (torch.bfloat16, torch.float16):
            return True
        if x.dtype is not torch.float32:
            return False
        alone = torch.get_num_threads() == 1 and x.shape[0] < 16 and kernel[-1] == kernel[-2 % len(kernel)] == 1
        strided = max(self.stride) > 1 or max(self.dilation) > 1
        big = self.groups > 1 or min(kernel[-2:]) > 3 or x.shape[0] > 1 or prod(x.shape[:4]) > 20480
        return (strided or not alone) and big

    @cached_property
    def channels_last(self) -> bool:
        """True if it is computed, and its result laid out, with channels last."""
        return any(memory_format(t) is not torch.contiguous_format for t in (self.x, self.weight))

    @cached_property
    def depthwise(self) -> bool:
        """True if each group is one channel."""
        return self.groups > 1 and self.weight.shape[1] == 1 == self.weight.shape[0] // self.groups

    @cached_property
    def first(self) -> bool:
        """True for so few input channels that oneDNN reads the input as it is."""
        return self.groups == 1 and self.x.shape[1] <= 3 and not self.transposed

    @cached_property
    def strided(self) -> bool:
        """True if the gradient of the input is computed with channels last, and copied twice."""
        return max(self.stride) > 1 and (self.groups == 1 or self.weight.shape[1] > 16) and _vector() == 16

    @cached_property
    def columns(self) -> int:
        """The bytes of one item's unfolded input, for a product of matrices."""
        kernel, channels = self.weight.shape[2:], self.weight.shape[1]
        sizes = zip(self.x.shape[2:], kernel, self.stride, self.padding, self.dilation, strict=True)
        places = prod((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
        return channels * prod(kernel) * places * self.x.element_size()

    def wide(self, channels: int) -> bool:
        """True if the padding is wider than the places that are computed at once, with this number of results each."""
        at_once = min(self.x.shape[-1], 14) if self.x.shape[-1] <= 14 else _REGISTERS // min(-(-channels // 16), 4)
        return self.padding[-1] > at_once

    def blocked(self, x: Tensor) -> int:
        """The bytes of an input or output in blocks of channels."""
        channels = _padded(x.shape[1]) if self.groups == 1 or self.depthwise else x.shape[1]
        return x.shape[0] * channels * prod(x.shape[2:]) * x.element_size()

    def blocked_weight(self) -> int:
        """The bytes of the weight in blocks."""
        out, into = self.weight.shape[:2]
        if self.groups == 1 or self.strided:
            out, into = _padded(out), into if self.first else _padded(into)
        elif self.depthwise:
            out = _padded(out)
        return out * into * prod(self.weight.shape[2:]) * self.weight.element_size()


def laid_out(result: Tensor, args: tuple[Any, ...]) -> Tensor:
    """A result on the meta device as the CPU lays it out: with channels last if the input or the weight is so."""
    x, weight = args[:2]
    last = next((f for f in map(memory_format, (x, weight)) if f is not torch.contiguous_format), None)
    return result if last is None or not result.is_meta else torch.empty_like(result, memory_format=last)


def forward(args: tuple[Any, ...], out: Tensor) -> int:
    """The most that `aten::convolution` has in use."""
    x, weight, _, stride, padding, dilation, transposed, _, groups = args
    conv = Convolution(x, weight, stride, padding, dilation, transposed, groups)
    contiguous = 0 if conv.channels_last else _copied(x)
    if not conv.by_onednn:
        return contiguous + _size(out) + _columns(conv, out)
    of_thread = _size(x) // len(x) if transposed and conv.strided else 0
    if conv.channels_last:
        buffer = torch.get_num_threads() * of_thread
        return _size(out) + conv.blocked_weight() + _copied_last(weight, conv) + buffer
    if conv.wide(weight.shape[0]) and groups == 1:
        return contiguous + 2 * _size(out)
    if conv.strided and not transposed and prod(weight.shape[2:]) == 1:  # the input's values that a stride leaves
        of_thread = x.shape[1] * prod(out.shape[2:]) * x.element_size()
    buffer = torch.get_num_threads() * of_thread
    source = 0 if conv.first else conv.blocked(x)
    result = conv.blocked(out)
    back = 2 if transposed and conv.strided else 1
    return contiguous + max(buffer + source + conv.blocked_weight() + result, result + back * _size(out))


def backward(args: tuple[Any, ...], out: Any) -> int:
    """The most that `aten::convolution_backward` has in use: the input's gradient comes first, then the weight's."""
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = args
    conv = Convolution(x, weight, stride, padding, dilation, transposed, groups)
    result = _size(out[0]) if wanted[0] else 0
    if not conv.by_onednn:
        return sum(_size(t) for t in out if t is not None) + _columns(conv, grad) + _copied(grad) + _copied(x)
    if conv.channels_last:
        return _backward_channels_last(conv, grad, result)
    before = _copied(grad) + _copied(x)
    data = _input_gradient(conv, grad, x) if wanted[0] else 0
    return before + max(data, result + _weight_gradient(conv, grad, x) if wanted[1] else 0)


def _input_gradient(conv: Convolution, grad: Tensor, x: Tensor) -> int:
    width, beyond = x.shape[-1], conv.dilation[-1] * (conv.weight.shape[-1] - 1) - conv.padding[-1]
    if beyond > (width if width <= _REGISTERS else _REGISTERS // 4) and conv.groups == 1 and not conv.strided:
        return _size(x) + max(conv.columns, _size(x))
    if not conv.strided or conv.transposed:
        into = conv.blocked(x)
        return max(conv.blocked(grad) + conv.blocked_weight() + into, into + _size(x))
    per_thread = prod(grad.shape[1:]) * grad.element_size()
    return max(_size(grad) + conv.blocked_weight() + _size(x) + torch.get_num_threads() * per_thread, 3 * _size(x))


def _weight_gradient(conv: Convolution, grad: Tensor, x: Tensor) -> int:
    """Groups of few channels, wide kernels and wide padding: a product of matrices, without other copies."""
    weight = _size(conv.weight)
    of_group = conv.weight.shape[1]
    few = max(conv.weight.shape[2:]) > 3 if conv.depthwise else of_group % (_vector() // 2)
    wide = 2 * conv.padding[-1] >= grad.shape[-1] or (conv.first and conv.weight.shape[-1] > 14)
    if few if conv.groups > 1 else wide:
        return weight + max(conv.columns + 4 * weight, weight)
    source = 0 if conv.first else conv.blocked(x)
    summed = min(torch.get_num_threads(), x.shape[0]) * conv.blocked_weight()  # each thread has its own sum
    return max(conv.blocked(grad) + source + summed, conv.blocked_weight() + weight)


def _backward_channels_last(conv: Convolution, grad: Tensor, result: int) -> int:
    before = 0 if memory_format(grad) is memory_format(conv.x) else _size(grad)
    before += _copied_last(conv.weight, conv)
    if conv.depthwise:  # each channel's kernel is padded to a block of inputs and outputs
        return before + result + (_vector() ** 2 + 2) * _size(conv.weight)
    return before + result + 3 * _size(conv.weight)


def _columns(conv: Convolution, out: Tensor) -> int:
    """The unfolded input of PyTorch's own kernel; a 1x1 kernel with stride 1 needs none."""
    kernel = prod(conv.weight.shape[2:])
    if kernel == 1 and max(conv.stride) == 1:
        return 0
    return out.shape[0] * prod(out.shape[2:]) * conv.x.shape[1] * kernel * conv.x.element_size()


def _copied_last(weight: Tensor, conv: Convolution) -> int:
    """The bytes of a copy of the weight with channels last."""
    last = torch.channels_last if weight.dim() == 4 else torch.channels_last_3d
    return 0 if weight.dim() < 4 or weight.is_contiguous(memory_format=last) else _size(weight)


def _copied(x: Tensor) -> int:
    return 0 if x.is_contiguous() else _size(x)


_REGISTERS = 28
"""Vectors of results that are computed at once."""


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _padded(channels: int) -> int:
    return -(-channels // _vector()) * _vector()


def _vector() -> int:
    """The number of float32 in a vector, which is the size of a block."""
    return 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
