"""Checksums of tensors' bits."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from hookcli.tensors.chunks import bits

BLOCK = 1 << 18
"""Elements that are weighed at once."""


def checksum(x: Tensor) -> Tensor:
    """A sum of the elements' bits, as integers, each times an odd number of its place, modulo 2**64.

    Odd, so that a change of any one element changes it; of its place, so that another order does. Stays on the device.
    """
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for number, block in enumerate(bits(x.contiguous()).reshape(-1).split(BLOCK)):
        total += (block * _odd(x.device)[: len(block)]).sum() * (2 * number + 1)
    return total


@lru_cache(maxsize=1)
def _odd(device: torch.device) -> Tensor:
    """Odd numbers that have no pattern (the first steps of splitmix64, Steele, Lea and Flood 2014, section 4)."""
    z = torch.arange(BLOCK, device=device) * -0x61C8864680B583EB
    z = (z ^ (z >> 30)) * -0x40A7B892E31B1A47
    return z ^ (z >> 27) | 1
