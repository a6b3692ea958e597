"""The autograd graph of a run: a row per node, from hooks on the nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hookcli.capabilities.graph.layout import COLUMNS
from hookcli.capabilities.graph.nodes import NativeHooks, PythonHooks, Seen
from hookcli.hooks.events import NodeInfo
from hookcli.hooks.native import build
from hookcli.hooks.node_hooks import OUTSIDE
from hookcli.hooks.session import HookSession
from hookcli.probes.base import Probe
from hookcli.table import STATS_KEYS, Row, Skipped, TensorStats
from hookcli.tensors.tree import lone


class GraphProbe(Probe):
    """A row per autograd node, in the order in which they fired; those that never did come last.

    `fqn` names the module whose forward made the node, for AccumulateGrad the parameter. The statistics are those of
    the gradients that come in (autograd's `grad_outputs`), with the prefix `out_` of those that go out (`grad_inputs`);
    of several tensors together. `us` is the time from the pre-hook's end to the post-hook's beginning, in microseconds:
    on an accelerator, the time of launching. `native` takes all of it from hooks in C++, which run without the GIL;
    `on_build` is called if they must be built first.
    """

    name = "graph"
    needs_backward = True
    grouping = "disjoint"
    columns = COLUMNS

    def __init__(self, native: bool = False, on_build: Callable[[str], None] | None = None) -> None:
        self._native = native
        self._on_build = on_build
        self._hooks: PythonHooks | NativeHooks
        self._seen: dict[int, Seen] = {}

    def attach(self, session: HookSession) -> None:
        self.session = session
        self._hooks = (NativeHooks if self._native else PythonHooks)(session)
        if self._native:
            build.load(self._on_build)  # what is missing is told before the model runs

    def rows(self) -> list[Row]:
        seen = self._seen = self._hooks.seen()
        never = [made for made in self.session.nodes.made if made.id not in seen and self._counts(made)]
        return [
            *map(self._row, sorted(seen.values(), key=lambda s: (s.number or 0, s.order or 0))),
            *map(self._row, self._hooks.captures()),
            *(self._row(Seen(made)) for made in never),
        ]

    def _row(self, seen: Seen) -> Row:
        placed = seen.made.id >= 0
        never = "never fired: recomputed" if seen.made.again else "never fired"
        never = never if self._hooks.covers(seen.made) else "no C++ hook: not in the graph of the loss"
        note = never if not seen.fired else f"fired {seen.fired} times" if seen.fired > 1 else None
        edited = self.session.parameter_hooks.edited.get(seen.made.fqn) if seen.fired else None
        out = TensorStats.merge(seen.went) if seen.went else None
        values = {
            "order": seen.order,
            "node": seen.made.name,
            "fqn": seen.made.fqn,
            "call": seen.made.call,
            "pass": seen.number,
            "fired": seen.fired,
            "in_shape": lone(seen.shapes[0]),
            "out_shape": lone(seen.shapes[1]),
            "dtype": seen.dtype,
            **(out.named("out_") if out else {f"out_{key}": None for key in STATS_KEYS}),
            "us": seen.us,
            "id": seen.made.id if placed else None,
            "next": self.session.nodes.following(seen.made) if placed else [],
            **({"note": note} if note else {}),
            **({"edited": edited} if edited else {}),
        }
        nothing = TensorStats(mean=math.nan) if seen.fired else None
        return Row(values, TensorStats.merge(seen.came) if seen.came else nothing)

    def totals(self) -> Mapping[str, object]:
        seen = self._seen
        nodes = sum(map(self._counts, self.session.nodes.made))
        totals: dict[str, object] = {"nodes": nodes, "fired": len(seen)}
        if nodes > len(seen):
            totals["never fired"] = nodes - len(seen)
        if again := sum(s.fired > 1 for s in seen.values()):
            totals["more than once"] = again
        return totals | self._hooks.totals()

    def _counts(self, made: NodeInfo) -> bool:
        """Not hookcli's own, nor one beyond the model's outputs where the graph is followed from those."""
        return made.watched and not (made.ours or (self.session.follow and made.fqn == OUTSIDE))

    def skipped(self) -> list[Skipped]:
        beyond = [Skipped(OUTSIDE, "beyond the model's outputs, from which the graph is followed")]
        unseen = [Skipped("", "nodes outside the graph of the modules' outputs are not seen before torch 2.14")]
        parts = [Skipped(*item) for item in (*self.session.not_hooked().items(), *self._hooks.unmeasured.items())]
        return parts + (beyond if self.session.follow else []) + ([] if self.session.nodes.exact else unseen)
