"""The memory of one of several processes that train a model together, from the timeline of a process that trains alone.

DistributedDataParallel: a process holds what a process alone holds, and buckets as large as the gradients.

FSDP2 (`fully_shard` on each block): a process holds its share of parameters, gradients and optimizer state. While a
block runs forward, its whole parameters are in use, and the buffers that gathered them and the block before.
While a block runs backward, its whole parameters and gradients are in use, the whole parameters of the block that runs
next, and the gradients of the block before, which are being reduced; when it ends, its gradients are copied for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from hookcli.capabilities.memory.profile import Kind, MemoryProfile, Moment, Place, StepMemory
from hookcli.table.names import is_within

_ASSUMED = {
    "ddp": "ddp: gradients are held twice, the second time in buckets (gradient_as_bucket_view=False)",
    "fsdp": "fsdp: parameters, gradients and optimizer state divide evenly; each block is sharded by itself, and the "
    "next is gathered while one runs backward; buffers of the communication library are not counted",
}


def one_process(profile: MemoryProfile, parallel: str, processes: int) -> MemoryProfile:
    """The memory of each of these processes, from the profile of a process alone with a process's part of the batch."""
    if parallel == "ddp" and not any(moment.phase == "backward" for moment in profile.steady.timeline):
        return profile  # without gradients there is nothing to communicate
    sharding = _Sharding(profile, processes)
    bucketed = {Kind.GRADIENTS: profile.trained}
    steps = []
    for step in (profile.steady, profile.first):
        moments = (_changed(m, bucketed) for m in step.timeline) if parallel == "ddp" else sharding.moments(step)
        timeline = list(moments)
        top = max(timeline, key=lambda moment: moment.highest)
        before = step.before + timeline[0].bytes - step.timeline[0].bytes
        # Memory at its peak is known by kind, but not by place.
        steps.append(StepMemory(before, timeline, {(Place(), kind): size for kind, size in top.held.items()}))
    steady, first = steps
    return replace(profile, steady=steady, first=first, notes=[*profile.notes, _ASSUMED[parallel]])


class _Sharding:
    """The parameters of each block, in bytes, which are divided among processes; `rest` are those outside of blocks."""

    def __init__(self, profile: MemoryProfile, processes: int) -> None:
        self._blocks = profile.blocks
        self._processes = processes
        self._sizes = Counter[str]()
        for fqn, size in profile.parameters.items():
            self._sizes[self._block(Place(fqn))] += size
        self._rest = self._sizes.pop("", 0)

    def moments(self, step: StepMemory) -> Iterator[Moment]:
        """The moments of a process with its shards."""
        sizes, processes = self._sizes, self._processes
        called = [block for m in step.timeline if m.phase == "forward" and (block := self._block(m.place))]
        upcoming = dict(pairwise(reversed(dict.fromkeys(called))))
        block, before, done = "", "", 0
        for moment, following in pairwise([*step.timeline, None]):
            assert moment is not None
            here, whole = self._block(moment.place), moment.held.get(Kind.GRADIENTS, 0)
            if moment.phase != "backward":  # the buffers of gathering a block and the one before are as large as it
                yield self._divided(moment, self._rest + 3 * sizes[here] if moment.phase != "step" else 0)
                continue
            if here and here != block:
                before, block, done = block, here, whole
            unreduced = whole - done if block else 0
            upcoming_size = sizes[upcoming.get(block, "")]
            gathered = self._rest + sizes[block] + upcoming_size + upcoming_size // processes
            ends = following is None or following.phase != "backward" or self._block(following.place) != here
            copied = unreduced + unreduced // processes if ends and block else 0
            yield self._divided(moment, gathered, unreduced, copied + sizes[before])

    def _divided(self, moment: Moment, gathered: int, unreduced: int = 0, copied: int = 0) -> Moment:
        """A moment with shards; `unreduced` gradients are whole; `gathered` and `copied` bytes are in use besides."""
        share = {kind: moment.held.get(kind, 0) for kind in (Kind.PARAMETERS, Kind.GRADIENTS, Kind.OPTIMIZER_STATE)}
        share[Kind.GRADIENTS] -= unreduced
        change = {kind: size // self._processes - size for kind, size in share.items()}
        change[Kind.PARAMETERS] += gathered
        change[Kind.GRADIENTS] += copied
        return _changed(moment, change)

    def _block(self, place: Place) -> str:
        """The block that a place is in; "" outside of them."""
        fqn = place.fqn or ""
        return next((block for block in self._blocks if fqn == block or is_within(fqn, block)), "")


def _changed(moment: Moment, change: dict[Kind, int]) -> Moment:
    """A moment with more, or less, of some kinds in use."""
    held = {kind: size for kind in Kind if (size := moment.held.get(kind, 0) + change.get(kind, 0))}
    more = sum(change.values())
    return replace(moment, bytes=moment.bytes + more, highest=moment.highest + more, held=held)
