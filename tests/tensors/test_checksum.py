"""Checksums of bits: those of a slow computation with Python's integers, the same on every path, and never alike."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import pytest
import torch
from tensors.kinds import EIGHT_BITS, FLOATS, INTEGERS
from torch import Tensor

from hookcli.tensors import checksum
from hookcli.tensors.checksum import checksums

CASES = {
    "several rows": lambda: torch.randn(checksum._ROW + 5),
    "rows of halves": lambda: torch.randn(2 * checksum._ROW).half(),
    "rows of bytes": lambda: torch.randint(256, (checksum._ROW + 1,)).byte(),
    "bfloat16": lambda: torch.randn(5, 7).bfloat16(),
    "float64": lambda: torch.randn(9).double(),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "int8": lambda: torch.arange(-3, 9).char(),
    "a number": lambda: torch.tensor(3.0),
    "nothing": lambda: torch.zeros(0, 4),
    "transposed": lambda: torch.randn(4, 6).t(),
    "NaN": lambda: torch.tensor([torch.nan, -torch.inf, -0.0]),
}


def slowly(x: Tensor) -> int:
    """Sums over rows of elements times odd numbers, then over rows, modulo 2**64, as a signed number."""
    width = min(4, x.element_size())
    raw = bytes(x.contiguous().reshape(-1).view(torch.uint8).tolist())
    bits = [int.from_bytes(raw[i : i + width], "little", signed=width > 1) for i in range(0, len(raw), width)]
    places = checksum._multipliers(checksum._ROW, 0).tolist()
    rows = [bits[i : i + checksum._ROW] for i in range(0, len(bits), checksum._ROW)]
    sums = [places[0], *(sum(a * b for a, b in zip(row, places, strict=False)) for row in rows)]
    of_rows = checksum._multipliers(1 << len(sums).bit_length(), 1)
    whole = sum(a * int(b) for a, b in zip(sums, of_rows, strict=False)) % 2**64
    return whole - 2**64 if whole >= 2**63 else whole


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_sum_of_bits_times_places_on_every_path(case: str) -> None:
    torch.manual_seed(0)
    x = CASES[case]()
    before = torch.get_rng_state()
    found = checksums([x, x.clone()])
    with patch.object(checksum.library, "loaded", None):
        assert checksums([x]) == found[:1]
        with patch.object(checksum, "on_cpu", lambda x: False):  # as on an accelerator
            assert checksums([x]) == found[:1]
    assert found == [slowly(x)] * 2 and torch.equal(torch.get_rng_state(), before)


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "channels_last": lambda x: x.reshape(1, 4, 3, 2).to(memory_format=torch.channels_last),
    "in steps": lambda x: x[::2, 1::2],
    "one of steps": lambda x: x.reshape(-1)[::5][-1:],
    "none of steps": lambda x: x.reshape(-1)[::5][:0],
    "expanded": lambda x: x[1:2].expand(3, -1),
    "one, expanded": lambda x: x[1, 1].expand(1),
    "one, expanded twice": lambda x: x[1, 1].expand(1, 1),
    "0-dimensional": lambda x: x[1, 1],
    "empty": lambda x: x[:, :0].t(),
    "unaligned": lambda x: x.reshape(-1)[1:],
    "conjugate": lambda x: x.conj()[1:2, ::2],
    "imaginary part": lambda x: x.conj().imag.reshape(-1)[3:4] if x.is_complex() else x[:1, 3],
}


@pytest.mark.parametrize(
    "kind", [*INTEGERS, torch.uint64, *FLOATS, *EIGHT_BITS, torch.complex64, torch.complex128], ids=str
)
def test_every_layout_has_the_checksum_of_a_contiguous_copy(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.rand(4, 6, dtype=torch.complex128 if kind.is_complex else torch.float64) * 40).to(kind)
    for name, layout in LAYOUTS.items():
        laid_out = layout(x)
        copy = torch.empty(laid_out.shape, dtype=laid_out.dtype)
        for place in itertools.product(*map(range, laid_out.shape)):
            copy[place] = laid_out[place]
        assert checksums([laid_out]) == [slowly(copy)], name


def test_small_and_regular_changes_are_seen() -> None:
    """Also those of which plain sums, and exclusive ors, of bits see nothing."""
    torch.manual_seed(0)
    x = torch.randn(64, 32)
    changed = {
        "one bit": (x.view(torch.int32) ^ (torch.arange(64 * 32).view(64, 32) == 7)).view(torch.float32),
        "all signs": -x,
        "two signs": torch.where(torch.arange(32) < 2, -x, x),
        "rows in another order": x[[1, 0, *range(2, 64)]],
        "transposed": x.t().contiguous(),
        "zeros": torch.zeros_like(x),
        "negative zeros": -torch.zeros_like(x),
        "sum kept": torch.cat([x[:1] + 1, x[1:2] - 1, x[2:]]),
    }
    numbers = checksums([x, *changed.values()])
    assert len(set(numbers)) == len(numbers)
