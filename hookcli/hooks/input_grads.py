"""Gradients of the tensors that modules receive, by each module's use of them, without a change to the graph.

A tensor's own hook gets the sum over everything that used it. A module's part of that sum arrives from the autograd
nodes which the module's forward makes from the tensor: they get a hook as they are made, and their gradients are added
up. A module that makes nothing of the tensor but returns it (Identity) has handed it on: the tensor's whole gradient is
told, with `handed_on`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.autograd import graph
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle, unserializable_hook

from hookcli.hooks.calls import Call
from hookcli.hooks.events import HookEvent
from hookcli.hooks.kinds import HookKind
from hookcli.hooks.nodes import walk
from hookcli.tensors import tree

if TYPE_CHECKING:
    from hookcli.hooks.session import HookSession

Edge = tuple[Node, int] | int
"""A place in the graph: a node and the number of its output; of a leaf the id of the tensor."""
Grads = tuple[Tensor | None, ...]


class Keep(Protocol):
    """Removes a handle when the session ends."""

    def __call__(self, handle: RemovableHandle, *, leaf: bool = False) -> None: ...


class Version:
    """Tells later whether a tensor was changed in place, without keeping its memory.

    PyTorch has no public access to a version counter: here is an empty tensor that shares it. An in-place change to a
    view, or to another view of its memory, gives the view another node, which drops the hooks on the view.
    """

    __slots__ = ("_counter", "_then")

    def __init__(self, tensor: Tensor) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            self._counter = tensor.detach()
            self._counter.data = self._counter.new_empty(0)
        self._then = tensor._version

    @classmethod
    def of_view(cls, tensor: Tensor) -> Self | None:
        """None for a tensor that is no view: its hooks stay with its value."""
        return cls(tensor) if tensor._is_view() and not tensor.is_inference() else None

    def changed(self) -> bool:
        """Whether the tensor, or memory that it shares, was changed since."""
        return self._counter._version != self._then


@dataclass(slots=True)
class Use:
    """A tensor that a call received, and what has arrived at it from the nodes that the call made of it."""

    edge: Edge
    events: list[HookEvent]
    shape: torch.Size | None
    version: int
    made: int = 0
    arrived: int = 0
    total: Tensor | None = None
    handed_on: bool = False
    lost: bool = False
    views: list[Version] = field(default_factory=list)

    def add(self, grad: Tensor) -> None:
        """Add what one node hands on, in the tensor's own shape: PyTorch sums what was broadcast after hooks ran."""
        if self.shape is not None and grad.shape != self.shape:
            grad = grad.sum_to_size(self.shape)
        self.total = grad if self.total is None else self.total + grad


class InputUses:
    """What the calls under way received. `ModuleHooks` tells of their begin and end."""

    def __init__(self, session: HookSession, keep: Keep, hookable: Callable[[Tensor], bool]) -> None:
        self._session = session
        self._keep = keep
        self._hookable = hookable
        self._open: dict[Edge, list[Use]] = {}
        self._exact = hasattr(graph, "node_creation_hook")
        self._started = False

    def start(self) -> None:
        """Be told of every node that is made from now on. PyTorch has that since 2.15; before, `returned` searches."""
        if self._exact and not self._started:
            self._started = True
            self._session.enter_context(graph.node_creation_hook(self._session.safe(self._created)))

    def receive(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call begins."""
        found: dict[int, Use] = {}
        for path, x in tree.arguments(args, kwargs):
            if not (x.requires_grad and self._hookable(x)):
                continue
            event = HookEvent(HookKind.TENSOR_GRAD_INPUT, call.site.fqn, call.site.module, call.number, path=path)
            if id(x) in found:
                found[id(x)].events.append(event)
                continue
            edge: Edge = id(x) if x.is_leaf else (x.grad_fn, x.output_nr)  # type: ignore[assignment]
            shape = None if x.is_nested else x.shape
            use = found[id(x)] = Use(edge, [event], shape, -1 if x.is_inference() else x._version)
            settle = unserializable_hook(self._session.safe(partial(self._settle, use)))
            self._keep(x.register_hook(settle), leaf=x.is_leaf)
            if self._exact:
                self._open.setdefault(edge, []).append(use)
        call.uses = found
        call.began = torch._C._autograd._get_sequence_nr()

    def returned(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The call is over: note what it handed on, and what of it is a view that can lose its hooks."""
        if not call.uses:
            return
        if not self._exact:
            self._search(output, call)
        returned = [y for _, y in tree.leaves(output)]
        same, bases = {id(y) for y in returned}, {id(tree.base(y)) for y in returned if y._is_view()}
        for x in {id(x): x for _, x in tree.arguments(args, kwargs)}.values():
            if use := call.uses.get(id(x)):
                self._compare(x, use, handed_on=id(x) in same, seen=id(tree.base(x)) in bases)

    def _compare(self, x: Tensor, use: Use, *, handed_on: bool, seen: bool) -> None:
        changed = use.version >= 0 and x._version != use.version
        use.lost = changed and x._is_view()  # its gradient goes past it, to what it is a view of
        use.handed_on = handed_on and not changed
        if seen and use.version >= 0:  # a view of it was returned, which the caller may change
            use.views.append(Version(x))

    def leave(self, call: Call) -> None:
        """The call is over, whatever way it ended."""
        for use in call.uses.values():
            if found := self._open.get(use.edge):
                found[:] = [other for other in found if other is not use]
                if not found:
                    del self._open[use.edge]
            use.edge = 0  # the node would hold its own hook, and so itself
        call.uses = {}

    # Nodes.

    def _created(self, node: Node) -> None:
        if self._open and TracingContext.try_get() is None:  # else torch.compile at work
            self._hook(node, self._open)

    def _hook(self, node: Node, uses: dict[Edge, list[Use]]) -> None:
        for place, (after, number) in enumerate(node.next_functions):
            if after is None:
                continue
            leaf = type(after).__name__ == "AccumulateGrad"
            received = uses.get(id(after.variable) if leaf else (after, number), [])  # type: ignore[attr-defined]
            for use in reversed(received):  # a part's comes before that of the module around it
                use.made += 1
                self._keep(node.register_hook(self._session.safe(partial(self._arrive, use, place))))

    def _search(self, output: Any, call: Call) -> None:
        """Find the nodes of a call that lead to its outputs, which it made since it began."""
        uses = {use.edge: [use] for use in call.uses.values()}
        ends = [y.grad_fn for _, y in tree.leaves(output) if y.grad_fn is not None]
        for node in list(walk(ends, lambda node: node._sequence_nr() >= call.began)):
            self._hook(node, uses)

    # Gradients.

    def _arrive(self, use: Use, place: int, grad_inputs: Grads, _: Grads) -> None:
        grad = grad_inputs[place]
        use.arrived += 1
        if grad is not None:
            with torch.no_grad():
                use.add(grad.detach())
        if use.arrived == use.made:
            self._tell(use)

    def _settle(self, use: Use, grad: Tensor | None) -> None:
        """Everything that used the tensor has handed its gradient on; some nodes may not have been reached."""
        if use.arrived:
            self._tell(use)
        elif use.handed_on and not use.made and grad is not None:
            self._emit(use, grad.detach())

    def _tell(self, use: Use) -> None:
        total, use.total, use.arrived = use.total, None, 0
        if total is not None:
            self._emit(use, total)

    def _emit(self, use: Use, grad: Tensor) -> None:
        if use.lost or any(version.changed() for version in use.views):
            return
        for event in use.events:
            self._session.emit_gradient(replace(event, handed_on=use.handed_on and not use.made), grad)
