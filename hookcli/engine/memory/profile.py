"""The memory of a training step over time: plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

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
class Peak:
    """The moment with the most memory in use, and what it was used for: bytes by place and kind."""

    moment: Moment
    held: Mapping[tuple[Place, Kind], int]

    @property
    def bytes(self) -> int:
        """The peak itself."""
        return self.moment.highest


@dataclass(frozen=True, slots=True)
class StepMemory:
    """One step: its peak, the bytes in use before it, and all its moments."""

    before: int
    peak: Peak
    timeline: Sequence[Moment]

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
