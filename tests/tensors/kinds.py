"""Tensors of every dtype and layout, with values at the ends of the ranges and without finite ones."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
INTEGERS = (torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64)


def kinds(n: int) -> Iterator[tuple[str, Tensor]]:
    """Tensors of n elements: of each kind that tests/tensors/test_stats.py has, and of every dtype."""
    bad = torch.randn(n)
    bad[[5, n // 2, n - 1]] = torch.tensor([math.nan, math.inf, -math.inf])
    yield from (
        ("nan and inf", bad),
        ("only nan", torch.full((n,), math.nan)),
        ("only inf", torch.full((9,), -math.inf)),
    )
    yield from (("one", torch.tensor([3.0])), ("scalar", torch.tensor(-2.5)), ("all zero", torch.zeros(n)))
    yield from ((f"{size} elements", torch.randn(size)) for size in (63, 64, 128, 330))
    yield from (("constant", torch.full((n,), 0.1)), ("relu", torch.randn(n).relu()))
    yield from (("mean far above spread", 1e4 + 1e-2 * torch.randn(n)), ("mean a million", 1e6 + torch.randn(n)))
    yield "a far outlier", torch.randn(n).index_fill(0, torch.tensor([3]), -1e7)
    yield "means that differ", torch.arange(float(n)).div(30).floor() * 1e4 + torch.randn(n)
    yield from ((f"scale {s:g}", s * torch.randn(n)) for s in (1e-42, 1e-30, 1e30, 3e37))
    yield from ((f"float64 scale {s:g}", s * torch.rand(n).double()) for s in (1e-310, 1e-200, 1e200, 1e306))
    yield from (("float16 that overflows", torch.full((n,), 300.0).half()), ("complex", torch.randn(n) * (1 + 2j)))
    yield from ((str(kind), (torch.randn(n) * 40).to(kind)) for kind in FLOATS + EIGHT_BITS)
    yield from ((str(kind), (torch.randn(n).abs() * 40).to(kind)) for kind in INTEGERS)
    image = torch.randn(2, 3, 3, n // 20)
    yield from (("channels_last", image.to(memory_format=torch.channels_last)), ("transposed", image.transpose(1, 3)))
    yield from (
        ("slice", image[:, ::3]),
        ("expanded", image[:1].expand(3, -1, -1, -1)),
        ("unaligned", image.view(-1)[3:]),
    )
    yield "in steps of 2", image.view(-1)[::2]
    yield "formats' limits", torch.tensor([464.0, 465, 61440, 65520, 3.3961775e38, -61439, 447]).repeat(10)
