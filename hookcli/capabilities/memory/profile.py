"""The memory of a training step over time, made from the log of storages' lifetimes, and the places of operators."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Any

from hookcli.hooks.events import HookEvent
from hookcli.hooks.module_calls import Call
from hookcli.hooks.operators.calls import numbered
from hookcli.hooks.operators.functions import function_names
from hookcli.hooks.session import HookSession
from hookcli.hooks.storage_lifetimes import OperatorCall, PhaseBegins, Storage, StorageLifetimes
from hookcli.hooks.torch_private.autograd import current_node, in_backward, next_sequence_number, sequence_number
from hookcli.table.meta import Meta


class Kind(StrEnum):
    """Purposes of memory."""

    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    INPUTS = "inputs"
    ACTIVATIONS = "activations"
    """Results of the forward that are in use when backward begins."""
    TEMPORARIES = "temporaries"
    """Everything else: it comes and goes within a phase."""
    WORKSPACE = "workspace"
    """Memory that an operator uses inside of its kernel."""


@dataclass(frozen=True, slots=True)
class Place:
    """A call of a module (fqn "" is the model); `fqn` None is outside of the model, as in the loss."""

    fqn: str | None = None
    call: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """A call of an operator: the bytes in use after it, and at most while it ran; the latter also by kind.

    `phase` is "forward", "loss", "backward" or "step"; `index` counts the moments of a step from 0.
    """

    index: int
    phase: str
    place: Place
    operator: str
    bytes: int
    highest: int
    held: Mapping[Kind, int]


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One step: the bytes in use before it, its moments, and the bytes that are held at its peak, by place and kind."""

    before: int
    timeline: Sequence[Moment]
    held: Mapping[tuple[Place, Kind], int]

    @property
    def peak(self) -> Moment:
        """The first moment with the most memory in use."""
        return max(self.timeline, key=lambda moment: moment.highest)

    def by_phase(self) -> dict[str, int]:
        """The highest number of bytes in use in each phase."""
        phases = groupby(self.timeline, lambda moment: moment.phase)
        return {phase: max(moment.highest for moment in moments) for phase, moments in phases}


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """The memory of a step in steady state, where the optimizer's state exists already, and of the first step.

    `types`: the modules, with their classes, in the order of `named_modules`; `parameters`: the bytes of each one's own
    parameters; `trained`: of all that require grad; `blocks`: the modules that FSDP2 shards one by one. `checkpointed`:
    the modules whose activations are recomputed. Where operators are asked for, `types` has theirs after their
    module's, and `sources` the lines that called them.
    """

    model: str
    info: Meta
    steady: StepMemory
    first: StepMemory
    types: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    trained: int = 0
    blocks: Sequence[str] = ()
    checkpointed: Sequence[str] = ()
    sources: Mapping[str, str] = field(default_factory=dict)


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
        held, peak = Counter[tuple[Place, Kind]](), -1
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
                    if highest > peak:
                        held, peak = in_use.held_while(timeline[-1]), highest
            elif (released := lifetimes.released(entry)) is not None:
                del alive[id(released)]
                in_use.add(released, -released.nbytes)
        if not timeline:  # no operator ran: the model returned what it received
            timeline = [in_use.moment(0, phase, Place(), "no operator", in_use.bytes)]
            held = in_use.held_while(timeline[0])
        self.steps.append(StepMemory(before or 0, timeline, held))


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

    def held_while(self, moment: Moment) -> Counter[tuple[Place, Kind]]:
        """The bytes in use at most while the operator of this moment ran, by place and kind."""
        return self._held + Counter({(moment.place, Kind.WORKSPACE): moment.highest - moment.bytes})


OUTSIDE = Place()


class Places:
    """Tells the place of each operator.

    In backward it is the place whose forward created the running node. Autograd numbers nodes as they are created, so
    that it is enough to note the number of the next node wherever the place changes.

    Where the session watches operators they are places, too; `operators` has the name of each that ran, by fqn, and the
    line that called it.
    """

    def __init__(self, session: HookSession) -> None:
        self._calls = session.calls
        self._numbers: list[int] = []
        self._places: list[Place] = []
        self._last = OUTSIDE
        self._next = 0
        self.operators: dict[str, tuple[str, str]] = {}
        self._running: tuple[Call, Place] | None = None
        if session.ops:
            session.before_operators.append(self._begin)
            session.forward(self._end)

    def _begin(self, call: Call, function: object) -> None:
        """Note the operator that a function will be, if it makes a tensor."""
        self._running = call, Place(numbered(call, function_names(function)[0]), call.number)

    def _end(self, event: HookEvent) -> None:
        if event.operator is not None:
            self.operators[event.fqn] = event.operator.name, event.operator.source
            self._running = None

    def __call__(self) -> Place:
        call = self._calls.innermost()
        if call is None and in_backward():
            node: Any = current_node()
            # None while autograd adds two gradients up; a parameter's gradient follows the node that made it.
            if node is not None and getattr(node, "variable", None) is None:
                after = bisect_right(self._numbers, sequence_number(node))
                self._last = self._places[after - 1] if after else OUTSIDE
            return self._last
        place = Place(call.hooked.fqn, call.number) if call else OUTSIDE
        if self._running and self._running[0] is call:
            place = self._running[1]
        if not self._places or self._places[-1] != place:
            self._numbers.append(self._next)  # an operator's node is made before the operator runs
            self._places.append(place)
        self._next = next_sequence_number()
        self._last = place
        return place
