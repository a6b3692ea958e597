"""The autograd graph of a run: a row per node, from hooks on the nodes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from hookcli.hooks import HookEvent, HookKind, HookSession, Made
from hookcli.probes.base import Probe
from hookcli.report import STATS_COLUMNS, STATS_KEYS, Column, Row, Skipped, TensorStats
from hookcli.stats import Pending, Reducer, resolve
from hookcli.tree import shape_of

Gradients = Sequence[Tensor | None]


@dataclass(slots=True)
class _Firing:
    """What a node's hooks saw, of its last firing. Times in nanoseconds."""

    made: Made
    order: int
    number: int
    fired: int = 0
    began: int = 0
    took: int | None = None
    shapes: list[list[list[int]]] = field(default_factory=lambda: [[], []])
    taken: list[list[Pending]] = field(default_factory=lambda: [[], []])
    dtype: str | None = None


class GraphProbe(Probe):
    """A row per autograd node, in the order in which they fired; those that never did come last.

    `fqn` names the module whose forward made the node, for AccumulateGrad the parameter. The statistics are those of
    the gradients that come in (autograd's `grad_outputs`), with the prefix `out_` of those that go out (`grad_inputs`);
    of several tensors together. `us` is the time from the pre-hook's end to the post-hook's beginning, in microseconds:
    on an accelerator, that of launching.
    """

    name = "graph"
    needs_backward = True
    grouping = "disjoint"
    columns = (
        Column("order", "Order"),
        Column("node", "Node"),
        Column("fqn", "Made by"),
        Column("call", "Call"),
        Column("pass", "Pass"),
        Column("fired", "Fired", "times"),
        Column("in_shape", "Gradient in"),
        Column("out_shape", "Gradient out"),
        Column("dtype", "Dtype"),
        *STATS_COLUMNS,
        *(replace(column, name=f"out_{column.name}", title=f"Out {column.title}") for column in STATS_COLUMNS),
        Column("us", "µs", "microseconds"),
        Column("id", "Id"),
        Column("next", "Next"),
    )

    def __init__(self) -> None:
        self._reduce = Reducer()
        self._firings: dict[int, _Firing] = {}
        self._began = 0
        self._spent = 0

    def attach(self, session: HookSession) -> None:
        self.session = session
        session.on(HookKind.NODE_PRE, self._before)
        session.on(HookKind.NODE, self._after)
        session.on(HookKind.ENGINE_CALLBACK, self._over)
        session.before_backward(self._begin)

    def _before(self, event: HookEvent) -> None:
        assert event.node is not None
        if event.node.ours:
            return
        order = len(self._firings)
        new = _Firing(event.node, order, self.session.passes)
        firing = self._firings.setdefault(event.node.id, new)
        firing.fired += 1
        self._take(firing, 0, event.grad_outputs)
        firing.began = time.perf_counter_ns()

    def _after(self, event: HookEvent) -> None:
        now = time.perf_counter_ns()
        assert event.node is not None
        if event.node.ours:
            return
        firing = self._firings[event.node.id]
        firing.took = now - firing.began
        self._take(firing, 1, event.grad_inputs)

    def _begin(self, roots: Sequence[Tensor]) -> None:
        self._began = time.perf_counter_ns()

    def _over(self, event: HookEvent) -> None:
        self._spent += time.perf_counter_ns() - self._began

    def _take(self, firing: _Firing, side: int, gradients: Gradients) -> None:
        tensors = [g for g in gradients if g is not None]
        firing.shapes[side] = [shape_of(g) for g in tensors]
        firing.taken[side] = [self._reduce(g) for g in tensors]
        firing.dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else firing.dtype

    def rows(self) -> list[Row]:
        flat = [p for firing in self._firings.values() for side in firing.taken for p in side]
        measured = iter(resolve(flat))
        fired = []
        for firing in self._firings.values():
            stats = [[next(measured) for _ in side] for side in firing.taken]
            fired.append(self._row(firing.made, firing, *(_merged(side) for side in stats)))
        never = [m for m in self.session.nodes.made if m.id not in self._firings and not m.ours]
        return [*fired, *(self._row(made, None, None, None) for made in never)]

    def _row(self, made: Made, firing: _Firing | None, into: TensorStats | None, out: TensorStats | None) -> Row:
        fired = firing.fired if firing else 0
        never = "never fired: recomputed" if made.again else "never fired"
        note = never if not fired else f"fired {fired} times" if fired > 1 else None
        values = {
            "order": firing.order if firing else None,
            "node": made.name,
            "fqn": made.fqn,
            "call": made.call,
            "pass": firing.number if firing else None,
            "fired": fired,
            "in_shape": _shape(firing.shapes[0]) if firing else None,
            "out_shape": _shape(firing.shapes[1]) if firing else None,
            "dtype": firing.dtype if firing else None,
            **{f"out_{key}": getattr(out, key) if out else None for key in STATS_KEYS},
            "us": firing.took / 1000 if firing and firing.took is not None else None,
            "id": made.id,
            "next": self.session.nodes.following(made),
            **({"note": note} if note else {}),
        }
        return Row(values, into or TensorStats(mean=math.nan) if firing else None)

    def totals(self) -> Mapping[str, Any]:
        nodes = [made for made in self.session.nodes.made if not made.ours]
        totals = {"nodes": len(nodes), "fired": len(self._firings)}
        if never := len(nodes) - len(self._firings):
            totals["never fired"] = never
        if again := sum(firing.fired > 1 for firing in self._firings.values()):
            totals["more than once"] = again
        if self._spent:
            totals["backward_us"] = self._spent // 1000
        return totals

    def skipped(self) -> list[Skipped]:
        if self.session.nodes.exact:
            return []
        reason = "nodes that no module's output leads to are not seen: torch 2.15 tells of them"
        return [Skipped("", reason)]


def _merged(stats: Sequence[TensorStats]) -> TensorStats | None:
    return TensorStats.merge(stats) if stats else None


def _shape(shapes: list[list[int]]) -> Any:
    """A lone tensor's shape, or a list of shapes."""
    return shapes[0] if len(shapes) == 1 else shapes or None
