"""Calls of modules and operators, without their tensors: shapes, and meters before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from torch import Tensor, nn

from hookcli.hooks.events import HookEvent
from hookcli.hooks.function_calls import Signature
from hookcli.probes.shared.traffic import Traffic
from hookcli.tensors.tree import dtype_text, keyword, shape_of

Tensors = Iterable[tuple[str, Tensor]]


class Reading(NamedTuple):
    """Meters at a moment: the calls of functions that were recorded, the bytes kept for backward, and those moved."""

    calls: int = 0
    kept: int = 0
    moved: Traffic = Traffic()


@dataclass(slots=True)
class ShapeCall:
    """A call of a module, or of an operator (`module` is None): what went in, what came out, and the meters.

    `after` is None for a call that has not ended. `versions`: those of the tensors that a layer received, if asked.
    `signature`: of an ATen operator, which runs inside of the functions that meters count.
    """

    fqn: str
    type: str
    module: nn.Module | None
    call: int
    index: int
    inputs: list[list[int]]
    names: list[str]
    before: Reading
    said: dict[str, str]
    outputs: list[tuple[str, list[int], str]] = field(default_factory=list)
    after: Reading | None = None
    versions: Sequence[int] | None = None
    signature: Signature | None = None

    @classmethod
    def of(cls, event: HookEvent, received: Tensors, before: Reading, said: Mapping[str, str]) -> Self:
        """The call that an event is about; `said`: what its row says besides, as an operator's name for its type."""
        found = list(received)
        inputs, names = [shape_of(x) for _, x in found], [keyword(path) for path, _ in found]
        kind = type(event.module).__name__
        return cls(event.fqn, kind, event.module, event.call, event.index, inputs, names, before, {**said})

    def leave(self, returned: Tensors, after: Reading) -> None:
        """Note what the call returned."""
        self.outputs = [(path, shape_of(x), dtype_text(x)) for path, x in returned]
        self.after = after

    @property
    def kept(self) -> int | None:
        """The bytes that the call saved for backward; not known of an ATen operator."""
        return None if self.after is None or self.signature else self.after.kept - self.before.kept

    @property
    def moved(self) -> Mapping[str, int | None]:
        """The bytes that the call read and wrote."""
        if self.after is None:
            return {"read_bytes": None, "written_bytes": None}
        moved = self.after.moved - self.before.moved
        return {"read_bytes": moved.read, "written_bytes": moved.written}
