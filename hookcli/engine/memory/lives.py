"""Makes the timeline of a step from the log of storages' lifetimes."""

from __future__ import annotations

from collections import Counter

from hookcli.engine.memory.profile import Kind, Moment, Peak, Place, StepMemory
from hookcli.hooks.storage_lifetimes import Mark, OperatorCall, Storage, StorageLifetimes


class Lives:
    """The storages in use as the log goes on; a step is made from it as soon as it is over.

    What a storage is for may be known only later (a gradient is one when it has been accumulated), but by the end of
    its step.
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
        self._alive |= {id(storage): storage for storage in self._lifetimes.older}
        self._lifetimes.older.clear()
        used, before = sum(s.nbytes for s in self._alive.values()), None
        phase, kinds, held = "", Counter[Kind](), Counter[tuple[Place, Kind]]()

        def count(storage: Storage, nbytes: int) -> None:
            kind = _kind(storage)
            kinds[kind] += nbytes
            held[storage.place, kind] += nbytes

        for storage in self._alive.values():
            count(storage, storage.nbytes)
        timeline: list[Moment] = []
        peak: Peak | None = None
        for entry in entries:
            if isinstance(entry, Mark):
                before = used if before is None else before
                phase = entry.phase
            elif isinstance(entry, OperatorCall):
                highest = used + entry.inside
                for storage in entry.created:
                    self._alive[id(storage)] = storage
                    used += storage.nbytes
                    count(storage, storage.nbytes)
                if before is None:
                    continue
                moment = Moment(
                    len(timeline),
                    phase,
                    entry.place,
                    entry.operator,
                    used,
                    highest,
                    _with_workspace(kinds, highest - used),
                )
                timeline.append(moment)
                if peak is None or highest > peak.moment.highest:
                    peak = Peak(moment, held + Counter({(entry.place, Kind.WORKSPACE): highest - used}))
            elif (released := self._lifetimes.released(entry)) is not None:
                used -= self._alive.pop(id(released)).nbytes
                count(released, -released.nbytes)
        # No operator needs memory where all of them return views.
        peak = peak or Peak(Moment(0, phase, Place(), "no operator", used, used, _with_workspace(kinds, 0)), +held)
        self.steps.append(StepMemory(before or 0, peak, timeline or [peak.moment]))


def _kind(storage: Storage) -> Kind:
    return _KINDS[storage.kind or Kind.TEMPORARIES]


_KINDS: dict[str, Kind] = {kind.value: kind for kind in Kind}


def _with_workspace(kinds: Counter[Kind], inside: int) -> dict[Kind, int]:
    """The bytes by kind while an operator ran that had so many inside of its kernel."""
    return {kind: size for kind, size in kinds.items() if size} | ({Kind.WORKSPACE: inside} if inside else {})
