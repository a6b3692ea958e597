"""Makes the timeline of a step from the log of storages' lifetimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hookcli.engine.memory.profile import Kind, Moment, Peak, Place, StepMemory
from hookcli.hooks.storage_lifetimes import OperatorCall, PhaseBegins, Storage, StorageLifetimes


class Lives:
    """The storages in use as the log goes on; a step is made from it as soon as it is over.

    The purpose of a storage may be known only later (a gradient becomes one when it is accumulated), but always by the
    end of its step.
    """

    def __init__(self, lifetimes: StorageLifetimes) -> None:
        self._lifetimes = lifetimes
        self._read = 0
        self._alive: dict[int, Storage] = {}
        self.steps: list[StepMemory] = []

    def step_ended(self) -> None:
        """Make a step from what the log has got since the last one."""
        log = self._lifetimes.log
        entries, self._read = log[self._read :], len(log)
        in_use = _InUse(self._alive, self._lifetimes.older)
        self._lifetimes.older.clear()
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
                    in_use.add(storage)
                if before is None:
                    continue
                moment = in_use.moment(len(timeline), phase, entry.place, entry.operator, highest)
                timeline.append(moment)
                if peak is None or highest > peak.moment.highest:
                    peak = in_use.peak(moment)
            elif (released := self._lifetimes.released(entry)) is not None:
                in_use.release(released)
        if peak is None:  # no operator ran: the model returned what it received
            timeline = [in_use.moment(0, phase, Place(), "no operator", in_use.bytes)]
            peak = in_use.peak(timeline[0])
        self.steps.append(StepMemory(before or 0, peak, timeline))


class _InUse:
    """Storages in use, by id in `alive`: their bytes in all, by kind, and by place and kind."""

    def __init__(self, alive: dict[int, Storage], older: Iterable[Storage]) -> None:
        self._alive = alive
        self.bytes = 0
        self._kinds = Counter[Kind]()
        self._held = Counter[tuple[Place, Kind]]()
        alive |= {id(storage): storage for storage in older}
        for storage in alive.values():
            self._count(storage, storage.nbytes)

    def add(self, storage: Storage) -> None:
        """Add a storage that was created."""
        self._alive[id(storage)] = storage
        self._count(storage, storage.nbytes)

    def release(self, storage: Storage) -> None:
        """Remove a storage that was released."""
        del self._alive[id(storage)]
        self._count(storage, -storage.nbytes)

    def _count(self, storage: Storage, nbytes: int) -> None:
        kind = _kind(storage)
        self.bytes += nbytes
        self._kinds[kind] += nbytes
        self._held[storage.place, kind] += nbytes

    def moment(self, index: int, phase: str, place: Place, operator: str, highest: int) -> Moment:
        """The moment after an operator, while which `highest` bytes were in use at most."""
        inside = highest - self.bytes
        workspace = {Kind.WORKSPACE: inside} if inside else {}
        held = {kind: size for kind, size in self._kinds.items() if size} | workspace
        return Moment(index, phase, place, operator, self.bytes, highest, held)

    def peak(self, moment: Moment) -> Peak:
        """The peak that this moment is, by place and kind."""
        inside = Counter({(moment.place, Kind.WORKSPACE): moment.highest - moment.bytes})
        return Peak(moment, self._held + inside)


def _kind(storage: Storage) -> Kind:
    return _KINDS[storage.kind or Kind.TEMPORARIES]


_KINDS: dict[str, Kind] = {kind.value: kind for kind in Kind}
