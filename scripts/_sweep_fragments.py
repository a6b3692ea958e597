"""How much more than its peak a training step needs on a GPU, by the rules of CUDA's caching allocator.

    scripts/sweep fragments                    ten models of torchvision
    scripts/sweep fragments --match 'swin*'    the ones whose names match

No GPU is needed: the storages that `hookcli memory --device cuda` follows are allocated and released, in their order,
in blocks and segments as c10/cuda/CUDACachingAllocator.cpp does it (without expandable segments): the smallest free
block that is large enough, split where enough is left, joined with free neighbours, and whole segments given back when
memory runs out. Prints the least memory in which two steps run, beside the peak.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

MIB = 2**20
MODELS = {
    "resnet50": "64x3x224x224",
    "resnet18": "256x3x224x224",
    "vit_b_16": "64x3x224x224",
    "densenet121": "32x3x224x224",
    "mobilenet_v2": "64x3x224x224",
    "swin_t": "32x3x224x224",
    "efficientnet_b3": "32x3x300x300",
    "convnext_tiny": "64x3x224x224",
    "vgg16": "32x3x224x224",
    "googlenet": "64x3x224x224",
}


class OutOfMemoryError(Exception):
    """An allocation does not fit, even after whole segments were given back."""


@dataclass(eq=False, slots=True)
class Block:
    """A part of a segment, between its neighbours."""

    address: int
    size: int
    small: bool
    free: bool = False
    before: Block | None = None
    after: Block | None = None


class Allocator:
    """The caching allocator of a GPU with so many bytes."""

    def __init__(self, capacity: int) -> None:
        self.reserved = 0
        self._capacity = capacity
        self._address = 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}

    def allocate(self, nbytes: int) -> Block:
        size = max(512, -(-nbytes // 512) * 512)
        pool = self._free[size <= MIB]
        fits = bisect_left(pool, (size, -1))
        block = pool.pop(fits)[2] if fits < len(pool) else self._segment(size)
        block.free = False
        rest = block.size - size
        if rest >= 512 if block.small else rest > MIB:
            self._put(self._split(block, size))
        return block

    def release(self, block: Block) -> None:
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._free[other.small].remove((other.size, other.address, other))
                first, second = (other, block) if other is block.before else (block, other)
                block.address, block.size = first.address, first.size + second.size
                block.before, block.after = first.before, second.after
        for neighbour, side in ((block.before, "after"), (block.after, "before")):
            if neighbour is not None:
                setattr(neighbour, side, block)
        self._put(block)

    def _segment(self, size: int) -> Block:
        small = size <= MIB
        nbytes = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + nbytes > self._capacity:
            for pool in self._free.values():
                for entry in [entry for entry in pool if entry[2].before is None and entry[2].after is None]:
                    pool.remove(entry)
                    self.reserved -= entry[0]
        if self.reserved + nbytes > self._capacity:
            raise OutOfMemoryError
        self.reserved += nbytes
        self._address += nbytes + MIB
        return Block(self._address - nbytes, nbytes, small)

    def _split(self, block: Block, size: int) -> Block:
        rest = Block(block.address + size, block.size - size, block.small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        return rest

    def _put(self, block: Block) -> None:
        block.free = True
        insort(self._free[block.small], (block.size, block.address, block))


@contextmanager
def _kept(logs: list[Any]) -> Iterator[None]:
    """Keep the log of each simulation."""
    from hookcli.capabilities.memory import simulate

    def made(lifetimes: Any) -> Any:
        logs.append(lifetimes)
        return whole(lifetimes)

    whole = simulate.Timelines
    with mock.patch.object(simulate, "Timelines", made):
        yield


def least(lifetimes: Any, peak: int) -> int:
    """The least memory in which all that the log has runs, to a MiB."""
    enough, lacking = 2 * peak + 64 * MIB, peak - 1
    while enough - lacking > MIB:
        capacity = (enough + lacking) // 2
        try:
            _replay(lifetimes, Allocator(capacity))
            enough = capacity
        except OutOfMemoryError:
            lacking = capacity
    return enough


def _replay(lifetimes: Any, allocator: Allocator) -> None:
    from hookcli.hooks.storage_lifetimes import OperatorCall

    blocks: dict[int, Block] = {}
    for entry in lifetimes.log:
        if isinstance(entry, OperatorCall):
            inside = entry.inside - sum(storage.nbytes for storage in entry.created)
            if inside > 0:
                allocator.release(allocator.allocate(inside))
            blocks |= {id(storage): allocator.allocate(storage.nbytes) for storage in entry.created if storage.nbytes}
        elif (released := lifetimes.released(entry)) is not None and id(released) in blocks:
            allocator.release(blocks.pop(id(released)))


def main(arguments: Sequence[str]) -> int:
    """The work of `scripts/sweep fragments`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="*", help="only models whose name matches one of these globs (A,B)")
    options = parser.parse_args(arguments)
    from hookcli.capabilities.memory.plan import MemoryPlan
    from hookcli.capabilities.memory.simulate import simulate
    from hookcli.engine.setting import Setting
    from hookcli.sources.finding import find_recipe
    from hookcli.sources.inputs import parse_input

    for name, given in MODELS.items():
        if not any(fnmatchcase(name, glob) for glob in options.match.split(",")):
            continue
        logs: list[Any] = []
        setting = Setting(inputs=(parse_input(given),), train=True, targets=True)
        with _kept(logs):
            found = simulate(find_recipe(name), setting, MemoryPlan("adamw", device="cuda"))
        peak = max(found.first.peak.highest, found.steady.peak.highest)
        needed = least(logs[-1], peak)
        print(f"{name} {given}: peak {peak / MIB:,.0f} MiB, runs in {needed / MIB:,.0f} MiB, {needed / peak - 1:+.1%}")
    return 0
