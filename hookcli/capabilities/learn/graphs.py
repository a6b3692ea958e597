"""Objects on nodes of autograd's graph, and the graphs of recorded steps that stay in memory, as of kept losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import ref

from torch.autograd.graph import Node

from hookcli.hooks.node_hooks import metadata_of
from hookcli.record.file.record_lines import RecordedStep

_KEPT = 64  # recorded steps
_NAME = "hookcli.capabilities.learn"


class Mark:
    """An object that lives as long as a node of autograd's graph, which holds it and nothing else does."""

    __slots__ = ("__weakref__",)

    @classmethod
    def on(cls, node: Node) -> ref[Mark]:
        mark = cls()
        metadata_of(node).setdefault(_NAME, []).append(mark)
        return ref(mark)

    def is_on(self, node: Node) -> bool:
        """True if it was put on this node."""
        return any(one is self for one in metadata_of(node).get(_NAME, ()))


@dataclass
class Graphs:
    """The marks of recorded steps."""

    _marks: list[tuple[int, Sequence[ref[Mark]]]] = field(default_factory=list)
    _last: int = 0

    def add(self, step: int, marks: Sequence[ref[Mark]]) -> None:
        """Add the marks of a recorded step."""
        self._last = step
        self._marks.append((step, marks))
        if len(self._marks) > _KEPT:
            del self._marks[1::2]

    def fields(self) -> dict[str, int]:
        """The fields of a line. Variables may still hold the loss and output of the last two steps."""
        earlier = [marks for step, marks in self._marks if step < self._last - 1 and marks]
        return {"seen": len(earlier), "graphs": sum(any(mark() for mark in marks) for marks in earlier)}


def in_use(step: RecordedStep) -> int:
    """The bytes that the device had allocated at most, or else the process had; 0 if neither was measured."""
    totals = step.totals("time")
    return int(totals.get("peak_bytes") or totals.get("resident_bytes") or 0)
