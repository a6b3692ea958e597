"""The figures of a tensor in each format: sums over pieces of bounded size, which stay on the tensor's device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hookcli.capabilities.formats.layout import COARSE
from hookcli.tensors.devices import launch
from hookcli.tensors.distance import decibels
from hookcli.tensors.number_formats import BY_NAME
from hookcli.tensors.pieces import PIECE, column_peaks, left_out, pieces

FAR = 8
"""An outlier is larger than so many times the median channel; and at most one of so many channels is one."""
_NOISE, _UNDERFLOW, _SATURATED, _OTHERS, _ALONE = range(5)  # sums by format; the last two over the other channels
_SIGNAL, _NONZERO, _NONFINITE, _BEYOND, _OTHER_SIGNAL = range(5)  # sums over values


class TensorFigures:
    """The figures of all tensors that were added, as of one; each tensor was rounded with its own scales.

    The sums are float64 (float32 on MPS, which has no other) and on the device of the first tensor.
    """

    def __init__(self, formats: Sequence[str], device: torch.device) -> None:
        self.formats, self.calls = formats, 0
        kind = launch.wide(device)
        self._outlier = torch.zeros((), dtype=torch.int64, device=device)  # the channel that has the largest value
        self._outliers = torch.zeros((), dtype=torch.int64, device=device)  # of the tensor with the most
        self._peak = torch.zeros((), device=device)
        self._sums = torch.zeros(5, dtype=kind, device=device)
        self._by_format = torch.zeros(len(formats), 5, dtype=kind, device=device)
        self._worst = torch.zeros(len(formats), dtype=kind, device=device)

    def add(self, x: Tensor, leading: int, width: int = 1) -> None:
        """Add a tensor: a matrix whose rows are the places of its `leading` dimensions.

        `width`: columns of a channel, as the kernel of a convolution has them. Nothing is read back from a device.
        """
        self.calls += 1
        columns = math.prod(x.shape[leading:])
        kept = [*pieces(x, leading)] if x.numel() <= PIECE else None
        peaks = column_peaks(kept or pieces(x, leading), columns, x.device)
        nonfinite, beyond = left_out(x, leading)
        self._sums[_NONFINITE] += nonfinite
        self._sums[_BEYOND] += beyond
        channels = peaks.view(-1, width).amax(1)
        are_outliers, peak = outliers(channels), channels.amax()
        self._outlier = torch.where(peak > self._peak, channels.argmax(), self._outlier)
        self._peak = torch.maximum(self._peak, peak)
        self._outliers = torch.maximum(self._outliers, are_outliers.count_nonzero())
        others = ~are_outliers.repeat_interleave(width)
        one = len(channels) == 1 or columns > PIECE
        rest = (peaks * others).amax()
        for piece, _, row_peaks in kept or pieces(x, leading):
            self._add(piece, row_peaks, peak, None if one else others, rest)

    def _add(self, x: Tensor, row_peaks: Tensor, peak: Tensor, others: Tensor | None, rest: Tensor) -> None:
        """Add a piece. `others`: the columns of all channels but outliers, whose largest magnitude is `rest`."""
        kind, nonzero = self._sums.dtype, x.count_nonzero()
        squares = x.to(kind).square()
        self._sums[_SIGNAL] += squares.sum()
        self._sums[_NONZERO] += nonzero
        without = x if others is None else x * others
        if others is not None:
            self._sums[_OTHER_SIGNAL] += (squares.sum(0) * others).sum()
        sizes = {form.block: form.blocks(squares).sum(2) for form in map(BY_NAME.__getitem__, self.formats)}
        for number, name in enumerate(self.formats):
            form, sums = BY_NAME[name], self._by_format[number]
            rounded = form(x, row_peaks, peak)
            noise = (rounded.values - x).to(kind).square_()
            blocks = form.blocks(noise).sum(2)
            sums[_NOISE] += blocks.sum()
            sums[_UNDERFLOW] += nonzero - rounded.values.count_nonzero()
            sums[_SATURATED] += rounded.saturated
            worst = torch.nan_to_num(blocks.div_(sizes[form.block]), nan=0.0, posinf=math.inf).amax()
            self._worst[number] = torch.maximum(self._worst[number], worst)
            if others is not None and name in COARSE:
                alone = form(without, without.abs().amax(1, keepdim=True), rest).values
                sums[_OTHERS] += (noise.sum(0) * others).sum()
                sums[_ALONE] += (alone - without).to(kind).square_().sum()

    def values(self) -> Mapping[str, Any]:
        """The figures by the names of their columns; this waits for the device."""
        sums, worst = self._sums.tolist(), self._worst.sqrt().tolist()
        values: dict[str, Any] = {"nonfinite_values": int(sums[_NONFINITE]), "beyond_float32": int(sums[_BEYOND])}
        values |= {"outlier": None, "outliers": None}
        for name, by, block in zip(self.formats, self._by_format.tolist(), worst, strict=True):
            values |= {
                f"sqnr_{name}": decibels(sums[_SIGNAL], by[_NOISE]),
                f"underflow_{name}": by[_UNDERFLOW] / max(sums[_NONZERO], 1.0),
                f"saturated_{name}": by[_SATURATED] / max(sums[_NONZERO], 1.0),
                f"block_error_{name}": block,
            }
            if name in COARSE:
                lose = by[_OTHERS] > 0
                others = decibels(sums[_OTHER_SIGNAL], by[_OTHERS]) if lose else None
                cost = round(decibels(by[_OTHERS], by[_ALONE]), 9) + 0.0 if lose else None
                values |= {f"others_{name}": others, f"outlier_cost_{name}": cost}
                values |= {"outlier": int(self._outlier), "outliers": int(self._outliers)} if lose else {}
        return values


def outliers(peaks: Tensor) -> Tensor:
    """Which channels are outliers, by the largest magnitude of each: the largest, and all above eight times the median.

    Where these are more than an eighth of all, none stands out, and the largest is looked at alone.
    """
    # An index in brackets would wait for the device.
    return far_above(peaks).index_fill_(0, peaks.argmax().view(1), True)


def far_above(peaks: Tensor) -> Tensor:
    """Which channels are above eight times the median; none if these are more than an eighth of all."""
    far = peaks > FAR * median_peak(peaks)
    return far & (FAR * far.count_nonzero() <= len(peaks))


def median_peak(peaks: Tensor) -> Tensor:
    """The median of the channels that are not 0 throughout; NaN if all are."""
    return torch.where(peaks > 0, peaks, math.nan).nanmedian()
