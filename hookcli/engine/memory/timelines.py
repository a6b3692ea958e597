"""The timelines of steps, from the log of storages' lifetimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hookcli.engine.memory.profile import Kind, Moment, Peak, Place, StepMemory
from hookcli.hooks.storage_lifetimes import OperatorCall, PhaseBegins, Storage, StorageLifetimes


class Timelines:
    """Makes each step from the log as soon as it is over.

    The purpose of a storage may be known only later (a gradient becomes one when it is accumulated), but always by the
    end of its step.
    """

    def __init__(self, lifetimes: StorageLifetimes) -> None:
        self._lifetimes = lifetimes
        self._alive: dict[int, Storage] = {}
        self._read = 0
        self.steps: list[StepMemory] = []

    def step_ended(self) -> None:
        """Make a step from what the log has got since the last one."""
        lifetimes, alive = self._lifetimes, self._alive
        entries, self._read = lifetimes.log[self._read :], len(lifetimes.log)
        alive |= {id(storage): storage for storage in lifetimes.older}
        lifetimes.older.clear()
        in_use = _InUse(alive.values())
        phase, before = "", None
        timeline: list[Moment] = []
        peak: Peak | None = None
        for entry in entries:
            if isinstance(entry, PhaseBegins):
                before = in_use.bytes if before is None else before
                phase = entry.phase
            elif isinstance(entry, OperatorCall):
                highest = in_use.bytes + entry.inside
                for storage in entry.created:
                    alive[id(storage)] = storage
                    in_use.add(storage, storage.nbytes)
                if before is not None:
                    timeline.append(in_use.moment(len(timeline), phase, entry.place, entry.operator, highest))
                    if peak is None or highest > peak.bytes:
                        peak = in_use.peak(timeline[-1])
            elif (released := lifetimes.released(entry)) is not None:
                del alive[id(released)]
                in_use.add(released, -released.nbytes)
        if peak is None:  # no operator ran: the model returned what it received
            timeline = [in_use.moment(0, phase, Place(), "no operator", in_use.bytes)]
            peak = in_use.peak(timeline[0])
        self.steps.append(StepMemory(before or 0, peak, timeline))


class _InUse:
    """The bytes of storages in use: in all, by kind, and by place and kind."""

    def __init__(self, storages: Iterable[Storage]) -> None:
        self.bytes = 0
        self._kinds = Counter[Kind]()
        self._held = Counter[tuple[Place, Kind]]()
        for storage in storages:
            self.add(storage, storage.nbytes)

    def add(self, storage: Storage, nbytes: int) -> None:
        """Add so many bytes for the purpose of a storage; less than 0 where it is released."""
        kind = Kind(storage.kind or Kind.TEMPORARIES)
        self.bytes += nbytes
        self._kinds[kind] += nbytes
        self._held[storage.place, kind] += nbytes

    def moment(self, index: int, phase: str, place: Place, operator: str, highest: int) -> Moment:
        """The moment after an operator, while which `highest` bytes were in use at most."""
        held = self._kinds + Counter({Kind.WORKSPACE: highest - self.bytes})  # without kinds of no bytes
        return Moment(index, phase, place, operator, self.bytes, highest, held)

    def peak(self, moment: Moment) -> Peak:
        """The peak that this moment is, by place and kind."""
        return Peak(moment, self._held + Counter({(moment.place, Kind.WORKSPACE): moment.highest - moment.bytes}))
