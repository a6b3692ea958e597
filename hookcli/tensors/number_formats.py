"""Rounds matrices to number formats, block by block, to the bit as PyTorch and torchao do.

`mxfp8` and `mxfp4` follow the OCP Microscaling Formats (MX) Specification v1.0 (2023): blocks of 32 values with a
scale that is a power of two, the largest one not above the block's largest value over the element's (section 6.3,
as torchao's `to_mx` in mode FLOOR). `nvfp4` is NVIDIA's: blocks of 16 values of e2m1, whose scales are e4m3 numbers
times one float32 number for the tensor (NVIDIA, "Pretraining Large Language Models with NVFP4", arXiv:2509.25149; as
torchao's `nvfp4_quantize`, which makes no scale smaller than the least normal e4m3 number). All round to nearest, ties
to even, and values beyond the largest are set to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

_TINY = torch.finfo(torch.float32).tiny  # 2**-126
_LEAST = 2.0**-149


@dataclass(frozen=True, slots=True)
class Element:
    """A small float: bits of its mantissa, exponents of its least and largest normal numbers, and its largest value.

    `beyond`: the largest magnitude that still rounds to the largest value, were there greater ones.
    """

    mantissa: int
    least: int
    most: int
    largest: float
    beyond: float

    def rounded(self, x: Tensor) -> Tensor:
        """The nearest values of this type to finite float32 numbers, ties to even."""
        x = x.clamp(-self.largest, self.largest)
        exponents = (x.view(torch.int32) & 0x7F800000).view(torch.float32)  # the powers of two below
        steps = exponents.clamp_(min=2.0**self.least).mul_(2.0**-self.mantissa)
        return x.div_(steps).round_().mul_(steps)


E4M3 = Element(3, -6, 8, 448.0, 464.0)
E5M2 = Element(2, -14, 15, 57344.0, 61440.0)
E2M1 = Element(1, 0, 2, 6.0, 7.0)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Values after rounding, in float32, and how many were so large that the format's largest value took their place
    although it is more than half a step away."""

    values: Tensor
    saturated: Tensor


@dataclass(frozen=True, slots=True)
class Format:
    """A number format: its `element`, a dtype, a small float or the largest integer; and which values share a scale.

    `scale`: "none", "tensor", "row", "mx" (a power of two for each block), "nv" (an e4m3 number for each block, times a
    number for the tensor) or "block". `block`: the length of blocks along a row; where a format has no blocks, those
    in which errors are looked at.
    """

    element: Element | torch.dtype | int
    scale: str = "none"
    block: int = 32

    def blocks(self, x: Tensor) -> Tensor:
        """A matrix as [rows, blocks, values of a block]; zeros fill the last block of each row."""
        width = max(min(self.block, x.shape[1]), 1)
        missing = -x.shape[1] % width
        return (pad(x, (0, missing)) if missing else x).reshape(len(x), -1, width)

    def __call__(self, x: Tensor, row_peaks: Tensor, peak: Tensor) -> Rounded:
        """Round a float32 matrix of finite values, given the largest magnitudes of its rows and of the whole tensor.

        `row_peaks` has the shape [rows, 1], `peak` none.
        """
        if isinstance(self.element, torch.dtype):
            values = x.to(self.element).float()
            return Rounded(values, values.isinf().count_nonzero())
        blocks = self.blocks(x)
        peaks = {"tensor": peak.view(1, 1, 1), "row": row_peaks.unsqueeze(2)}.get(self.scale)
        peaks = blocks.abs().amax(2, keepdim=True) if peaks is None else peaks
        saturated = peak.new_zeros((), dtype=torch.int64)
        if isinstance(self.element, int):
            scales = (peaks / self.element).clamp_(min=_TINY)  # so that the reciprocal is finite
            values = (blocks * (1.0 / scales)).round_().clamp_(-self.element, self.element).mul_(scales).add_(0.0)
        else:
            scaled, scales = self._scaled(blocks, peaks, peak, self.element)
            if self.scale in ("mx", "nv"):  # no other scale is too small for the largest value
                saturated = (scaled.abs() > self.element.beyond).count_nonzero()
            values = self.element.rounded(scaled).mul_(scales)
        return Rounded(values.view(len(x), -1)[:, : x.shape[1]], saturated)

    def _scaled(self, blocks: Tensor, peaks: Tensor, peak: Tensor, element: Element) -> tuple[Tensor, Tensor]:
        """The values in units of their scales, and the scales."""
        if self.scale == "nv":
            whole = (peak / (E4M3.largest * E2M1.largest)).clamp(min=2.0**-120)  # else reciprocals overflow
            small = E4M3.rounded((peaks / E2M1.largest / whole).clamp_(2.0**E4M3.least, E4M3.largest))
            return blocks * ((1.0 / whole) / small), whole * small
        if self.scale == "mx":
            # The power of two below the largest magnitude, over the element type's largest power; 2**-127 at least, as
            # e8m0 has it. Exponents are biased by 127; 0 stands for 2**-127.
            exponents = (peaks.view(torch.int32) >> 23) - element.most
            scales = torch.where(exponents > 0, exponents << 23, 1 << 22).view(torch.float32)
        else:
            scales = (peaks / element.largest).clamp_(min=_LEAST)
        return blocks / scales, scales


BY_NAME = {
    "float16": Format(torch.float16),
    "bfloat16": Format(torch.bfloat16),
    "float8_e4m3fn": Format(E4M3, "tensor"),
    "float8_e4m3fn_row": Format(E4M3, "row"),
    "float8_e5m2": Format(E5M2, "tensor"),
    "float8_e5m2_row": Format(E5M2, "row"),
    "mxfp8": Format(E4M3, "mx"),
    "int8": Format(127, "row"),
    "nvfp4": Format(E2M1, "nv", block=16),
    "mxfp4": Format(E2M1, "mx"),
    "int4": Format(7, "block", block=128),
}


def rounded(x: Tensor, name: str) -> Tensor:
    """A float32 matrix of finite values as this format holds it."""
    row_peaks = x.abs().amax(1, keepdim=True)
    return BY_NAME[name](x, row_peaks, row_peaks.amax()).values
