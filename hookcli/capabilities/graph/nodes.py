"""The firings of autograd nodes, seen by hooks in Python or, without the GIL, in C++."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hookcli.hooks.events import HookEvent, NodeInfo
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.native.timeline import GradRecord, NodeRecord, Timeline
from hookcli.hooks.session import HookSession
from hookcli.hooks.torch_private.autograd import tensor_hooks
from hookcli.table import TensorStats
from hookcli.tensors.chunks import PendingFigures, cause
from hookcli.tensors.stats import Reducer, resolve
from hookcli.tensors.tree import dtype_text, shape_of


@dataclass(slots=True)
class Seen:
    """A node, and what its hooks saw, the last time that they did. `came` are autograd's grad_outputs.

    Python hooks note meanwhile when the node began, in nanoseconds, and what they reduced, of both sides.
    """

    made: NodeInfo
    number: int | None = None
    order: int | None = None
    fired: int = 0
    us: float | None = None
    shapes: list[list[list[int]]] = field(default_factory=lambda: [[], []])
    dtype: str | None = None
    came: Sequence[TensorStats] = ()
    went: Sequence[TensorStats] = ()
    began: int = 0
    taken: list[list[PendingFigures]] = field(default_factory=lambda: [[], []])


class PythonHooks:
    """Hooks in Python on each node. A tensor is reduced in the hook."""

    def __init__(self, session: HookSession) -> None:
        self._session = session
        self._reduce = Reducer()
        self._nodes: dict[int, Seen] = {}
        self._counts: Counter[int] = Counter()
        self._began: int | None = None
        self._over: int | None = None
        self.unmeasured: dict[str, str] = {}
        session.on(HookKind.NODE_PRE, self._before)
        session.on(HookKind.NODE, self._after)

        def over(event: HookEvent) -> None:
            self._over = time.perf_counter_ns()

        def begins(roots: object) -> None:
            self._began = None

        session.on(HookKind.ENGINE_CALLBACK, over)
        # A backward pass of the model's own may have run in its forward.
        session.before_backward(begins)

    def _before(self, event: HookEvent) -> None:
        assert event.node is not None
        node = self._nodes.setdefault(event.node.id, Seen(event.node))
        node.fired += 1
        if node.number != self._session.pass_number:
            node.number = self._session.pass_number
            node.order = self._counts[self._session.pass_number]
            self._counts[self._session.pass_number] += 1
        self._began = self._began or time.perf_counter_ns()
        self._take(node, 0, event.grad_outputs)
        node.began = time.perf_counter_ns()

    def _after(self, event: HookEvent) -> None:
        now = time.perf_counter_ns()
        assert event.node is not None
        node = self._nodes[event.node.id]
        node.us = (now - node.began) / 1000
        self._take(node, 1, event.grad_inputs)

    def _take(self, node: Seen, side: int, gradients: Sequence[Tensor | None]) -> None:
        tensors = [g for g in gradients if g is not None]
        node.shapes[side] = [shape_of(g) for g in tensors]
        try:
            node.taken[side] = [self._reduce(g) for g in tensors]
        except Exception as error:  # as inside torch.vmap, whose tensors have no values
            node.taken[side] = []
            self.unmeasured[node.made.fqn] = f"gradients that can't be reduced ({cause(error, *tensors)})"
        if tensors:
            node.dtype = dtype_text(tensors[0])

    def seen(self) -> dict[int, Seen]:
        """Return the nodes seen, by id, with their statistics read back."""
        measured = iter(resolve([p for node in self._nodes.values() for side in node.taken for p in side]))
        for node in self._nodes.values():
            node.came, node.went = ([next(measured) for _ in side] for side in node.taken)
        return self._nodes

    def covers(self, made: NodeInfo) -> bool:
        """True if it would be known if this node fired."""
        return True

    def captures(self) -> list[Seen]:
        """Python has no hook on what torch.autograd.grad captures."""
        return []

    def totals(self) -> dict[str, object]:
        return {"backward_us": (self._over - self._began) // 1000} if self._over and self._began else {}


class NativeHooks:
    """Hooks in C++ on each node, and on each parameter's tensor. A timeline for each pass."""

    def __init__(self, session: HookSession) -> None:
        self._session = session
        self._passes: list[tuple[Timeline, list[NodeInfo]]] = []
        self._covered: set[int] = set()
        self.unmeasured: dict[str, str] = {}
        self._began: int | None = None
        session.on(HookKind.NODE_CREATION, lambda event: None)
        session.before_backward(self._hook)

    def _hook(self, roots: Sequence[Tensor]) -> None:
        # A hook from C++ on a tensor drops those that it has from Python.
        free = {n: p for n, p in self._session.model.named_parameters() if p.requires_grad and not tensor_hooks(p)}
        if self._passes:  # a gradient accumulator lives on: the pass that is over must not see it fire again
            self._passes[-1][0].detach()
        timeline = Timeline(roots, list(free.values()))
        made = self._session.nodes.in_walk_order(roots)
        self._covered.update(node.id for node in made)
        self._passes.append((self._session.stack.enter_context(timeline), made))

    def seen(self) -> dict[int, Seen]:
        """As in Python; a node of several passes has the last one's figures and the number of all its firings."""
        seen: dict[int, Seen] = {}
        for number, (timeline, made) in enumerate(self._passes):
            nodes = timeline.nodes()
            self._began = min((r.began_ns for r in nodes if r.began_ns is not None), default=None)
            pairs = zip(made, nodes, strict=True)
            records = [(node, r) for node, r in pairs if r.fired and node.watched and not node.ours]
            records.sort(key=lambda pair: pair[1].order or 0)
            for order, (node, record) in enumerate(records):
                before = seen[node.id].fired if node.id in seen else 0
                seen[node.id] = _seen(node, record, number, order, before)
        return seen

    def covers(self, made: NodeInfo) -> bool:
        """Only below what is differentiated: not in a backward pass that the model runs itself."""
        return made.id < 0 or made.id in self._covered

    def captures(self) -> list[Seen]:
        """Return the gradients that torch.autograd.grad took, seen by the engine's hook and by the tensor's."""
        seen: list[Seen] = []
        for record, made in ((record, made) for timeline, made in self._passes for record in timeline.captures()):
            fqn = made[record.node].fqn if record.node is not None else ""
            seen.append(_of_gradient(NodeInfo(-1, "capture hook (deprecated)", fqn), record.gradient))
            if record.tensor_hook:
                seen.append(_of_gradient(NodeInfo(-1, "tensor hook", fqn), record.tensor_hook.gradient))
        return seen

    def totals(self) -> dict[str, object]:
        if not self._passes:
            return {}
        timeline = self._passes[-1][0]
        totals: dict[str, object] = {"tensor hooks": sum(leaf.fired for leaf in timeline.leaf_gradients())}
        if captures := len(timeline.captures()):
            totals["captures"] = captures
        if self._began is not None and timeline.finished_ns is not None:
            totals["backward_us"] = (timeline.finished_ns - self._began) // 1000
        return totals


def _seen(made: NodeInfo, record: NodeRecord, number: int, order: int, before: int) -> Seen:
    sides = [[g for g in side if g is not None] for side in (record.grad_outputs, record.grad_inputs)]
    came, went = ([g.stats for g in side if g.stats] for side in sides)
    took = record.ended_ns - record.began_ns if record.ended_ns is not None and record.began_ns is not None else None
    return Seen(
        made,
        number,
        order,
        before + record.fired,
        None if took is None else took / 1000,
        [[list(g.shape) for g in side] for side in sides],
        next((g.dtype for side in reversed(sides) for g in side), None),
        came,
        went,
    )


def _of_gradient(made: NodeInfo, gradient: GradRecord | None) -> Seen:
    if gradient is None:
        return Seen(made, fired=1)
    stats = [gradient.stats] if gradient.stats else []
    return Seen(made, fired=1, shapes=[[list(gradient.shape)], []], dtype=gradient.dtype, came=stats)
